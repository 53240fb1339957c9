// Package published reads other people's numbers: a speed test page as text,
// HTML or Markdown, or the JSON that llm-inference-bench writes. It makes the
// same rows of them that a run of ours has, says what the page claims about
// hardware, engine and command, and finds what on it does not add up.
//
// It does not know how a serve command is read (the caller passes that in), how
// a run is stored, or how a page is drawn. It never corrects a number: a row
// keeps what is printed, contradictions included.
//
// The flow of a page:
//
//  1. [Read] tells the kind of the file and turns it into a document: sections
//     by heading, with their fields, tables, lines and code. Text that has lost
//     its separators stays glued at this point.
//  2. The list "All measurements" is read row by row. A glued row is split in
//     every way that the grammar of the pages allows: contexts and requests of
//     the axes, decimals with exactly one digit, thousands in groups of three.
//  3. The rest of the page decides between the readings: tokens ÷ time is the
//     total, the matrix and the prefill bars show the same numbers. One reading
//     is left, or the row is an error that shows the readings. Nothing is guessed.
//  4. [Findings] does the arithmetic that the page itself allows.
//
// K is 1,024 in a context ("8K") and 1,000 in a rate ("32.7K").
package published
