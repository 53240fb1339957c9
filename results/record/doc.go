// Package record is what a run stores: the facts that were observed, and the
// rows that were made from them.
//
// It holds types, and the one rule by which secrets are taken out of the texts in them
// ([Redactor]). It does not know how anything is measured (runner), how
// a number is computed (metric), or how a file is written (store), and it
// imports nothing of this module, so every stage can speak it.
//
// From the inside out:
//
//  1. A [Chunk] is one event of a stream that was read: when, and how many
//     tokens the server had counted by then.
//  2. A [Request] is one HTTP exchange with its chunks. A failed request is a
//     row like any other.
//  3. A [Trial] is one execution of a cell: its requests, samples, clocks and
//     status. A failed or skipped trial is a row too.
//  4. A [Cell] is the row that is made of a trial by package metric, or read
//     from a published page. A number that is not known is absent.
//  5. A [Run] is one plan carried out; it is the content of run.json.
//
// Times inside a trial are monotonic nanoseconds since Trial.StartedAt. All
// other times are UTC. Text that came from servers, files or pages is stored as
// it came, bounded in size and with secrets removed; whoever shows it escapes it.
package record

// SchemaVersion is the version of the files of a run. It rises when the meaning
// of a stored field changes; FORMAT.md has a line for each value.
const SchemaVersion = 1
