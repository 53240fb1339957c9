// Package store keeps runs as directories of Parquet and JSON files. It is the
// only user of Arrow.
//
// It does not know how anything is measured, what a page looks like or what is in
// a plan: plan.json and experiment.yaml are bytes to it.
//
// # Flow
//
//  1. [Create] makes <run-id>.partial, which is not a run, and locks it.
//  2. [Partial.PutTrial] adds one finished trial to its journal: written beside,
//     synced, renamed. What it returned nil for survives a crash of this program
//     and of the machine. [Resume] opens such a directory again.
//  3. [Partial.Finish] writes the Parquet files from the journal, reads them back,
//     has the page rendered, writes run.json with the hash of every file, and
//     renames the directory to <run-id>. If anything fails, the journal stays.
//  4. [Open] reads a run. [Stored.Trials] gives back the trials that the journal
//     had, from the Parquet files alone, so every metric can be computed again.
//
// A finished run is never modified. results/FORMAT.md has every file and column;
// a test holds it to the columns of this package.
//
// # Columns
//
// A column is declared once, as a row of a table in columns.go: its name, type,
// unit and meaning, and one function that points at the field of the Go type. The
// same pointer serves for writing and for reading. Columns are found by name; a
// nullable one that a file of an older schema does not have reads as absent.
package store
