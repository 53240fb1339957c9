package store

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"
)

// dumped is one Parquet file as this program reads it.
type dumped struct {
	File      string            `json:"file"`
	Rows      int64             `json:"rows"`
	RowGroups int               `json:"row_groups"`
	Metadata  map[string]string `json:"metadata"`
	Columns   []dumpedColumn    `json:"columns"`
}

type dumpedColumn struct {
	Name     string `json:"name"`
	Type     string `json:"type"` // int64, double, string, boolean or timestamp_us_utc
	Nullable bool   `json:"nullable"`
	Nulls    int    `json:"nulls"`
	Values   []any  `json:"values"` // timestamps as microseconds since 1970
}

// Dump writes the Parquet files of a run directory as JSON, one file a line, so
// that other programs can hold their own reading against this one's.
func Dump(out io.Writer, dir string) error {
	paths, err := filepath.Glob(filepath.Join(dir, "*.parquet"))
	if err != nil {
		return err
	}
	if len(paths) == 0 {
		return fmt.Errorf("%s: no Parquet files", dir)
	}
	w := bufio.NewWriter(out)
	enc := json.NewEncoder(w)
	for _, path := range paths {
		var d dumped
		if err := guard(func() (err error) { d, err = dump(path); return err }); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if err := enc.Encode(d); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	return w.Flush()
}

func dump(path string) (d dumped, err error) {
	f, err := os.Open(path)
	if err != nil {
		return d, err
	}
	defer f.Close()
	pq, err := file.NewParquetReader(f)
	if err != nil {
		return d, err
	}
	defer pq.Close()
	d = dumped{File: filepath.Base(path), Rows: pq.NumRows(), RowGroups: pq.NumRowGroups(), Metadata: make(map[string]string)}
	kv := pq.MetaData().KeyValueMetadata()
	for i, key := range kv.Keys() {
		d.Metadata[key] = kv.Values()[i]
	}
	fr, err := pqarrow.NewFileReader(pq, pqarrow.ArrowReadProperties{BatchSize: max(1, min(8<<10, d.Rows))}, memory.DefaultAllocator)
	if err != nil {
		return d, err
	}
	rr, err := fr.GetRecordReader(context.Background(), nil, nil)
	if err != nil {
		return d, err
	}
	defer rr.Release()
	for _, field := range rr.Schema().Fields() {
		typ, err := dumpedType(field.Type)
		if err != nil {
			return d, fmt.Errorf("column %s: %w", field.Name, err)
		}
		d.Columns = append(d.Columns, dumpedColumn{Name: field.Name, Type: typ, Nullable: field.Nullable, Values: []any{}})
	}
	for rr.Next() {
		for i, a := range rr.RecordBatch().Columns() {
			c := &d.Columns[i]
			for k := range a.Len() {
				if a.IsNull(k) {
					c.Nulls++
				}
				c.Values = append(c.Values, dumpedValue(a, k))
			}
		}
	}
	if err := rr.Err(); err != nil && err != io.EOF {
		return d, err
	}
	return d, nil
}

func dumpedType(t arrow.DataType) (string, error) {
	switch {
	case arrow.TypeEqual(t, arrow.PrimitiveTypes.Int64):
		return "int64", nil
	case arrow.TypeEqual(t, arrow.PrimitiveTypes.Float64):
		return "double", nil
	case arrow.TypeEqual(t, arrow.BinaryTypes.String):
		return "string", nil
	case arrow.TypeEqual(t, arrow.FixedWidthTypes.Boolean):
		return "boolean", nil
	case arrow.TypeEqual(t, timestampUTC):
		return "timestamp_us_utc", nil
	}
	return "", fmt.Errorf("type %v is none that a run has", t)
}

func dumpedValue(a arrow.Array, i int) any {
	if a.IsNull(i) {
		return nil
	}
	switch a := a.(type) {
	case *array.Int64:
		return a.Value(i)
	case *array.Float64:
		return a.Value(i)
	case *array.Boolean:
		return a.Value(i)
	case *array.Timestamp:
		return int64(a.Value(i))
	case *array.String:
		return strings.Clone(a.Value(i))
	}
	return nil // excluded by dumpedType
}
