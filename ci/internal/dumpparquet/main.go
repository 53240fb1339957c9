// Dumpparquet prints the Parquet files of run directories as JSON, one file a
// line, as this module's own reader sees them. ci/parquet-readers compares that
// with what DuckDB and pyarrow see.
package main

import (
	"fmt"
	"os"

	"speedmatrix/results/store"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: dumpparquet RUN_DIR")
		os.Exit(2)
	}
	if err := store.Dump(os.Stdout, os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "dumpparquet:", err)
		os.Exit(1)
	}
}
