package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/compress"
	"github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"
)

// rowGroupRows bounds a row group, and with it the memory that writing needs.
const rowGroupRows = 64 << 10

// column of a table whose rows are R.
type column[R any] struct {
	name     string
	typ      arrow.DataType
	unit     string
	nullable bool
	dict     bool // few different values: dictionary-encoded
	since    int  // schema version that added it
	def      string

	put func(array.Builder, *R) error
	// get reads row i of a; nil: the column is for people who query the files, and
	// is not read back. It is not called for nulls.
	get func(a arrow.Array, i int, r *R)
}

// table is one Parquet file of a run.
type table[R any] struct {
	file    string
	about   string
	columns []column[R]
}

func (t table[R]) schema(meta map[string]string) *arrow.Schema {
	fields := make([]arrow.Field, len(t.columns))
	for i, c := range t.columns {
		fields[i] = arrow.Field{Name: c.name, Type: c.typ, Nullable: c.nullable}
	}
	md := arrow.MetadataFrom(meta)
	return arrow.NewSchema(fields, &md)
}

// Field constructors. The pointer that f returns is used in both directions.

type integer interface {
	~int | ~int32 | ~int64
}

var timestampUTC = &arrow.TimestampType{Unit: arrow.Microsecond, TimeZone: "UTC"}

// integers is a required column.
func integers[R any, T integer](name, unit, def string, f func(*R) *T) column[R] {
	return column[R]{name: name, typ: arrow.PrimitiveTypes.Int64, unit: unit, since: 1, def: def,
		put: func(b array.Builder, r *R) error { b.(*array.Int64Builder).Append(int64(*f(r))); return nil },
		get: func(a arrow.Array, i int, r *R) { *f(r) = T(a.(*array.Int64).Value(i)) },
	}
}

// countsOrNull is a column of counts for which zero means that there is none.
func countsOrNull[R any, T integer](name, unit, def string, f func(*R) *T) column[R] {
	c := integers(name, unit, def, f)
	c.nullable = true
	put := c.put
	c.put = func(b array.Builder, r *R) error {
		if *f(r) == 0 {
			b.AppendNull()
			return nil
		}
		return put(b, r)
	}
	return c
}

func integersOrNull[R any](name, unit, def string, f func(*R) **int64) column[R] {
	return column[R]{name: name, typ: arrow.PrimitiveTypes.Int64, unit: unit, nullable: true, since: 1, def: def,
		put: func(b array.Builder, r *R) error {
			if p := *f(r); p != nil {
				b.(*array.Int64Builder).Append(*p)
			} else {
				b.AppendNull()
			}
			return nil
		},
		get: func(a arrow.Array, i int, r *R) { v := a.(*array.Int64).Value(i); *f(r) = &v },
	}
}

func putFloat(name string, b array.Builder, v float64) error {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return fmt.Errorf("column %s: %v is no number that can be stored", name, v)
	}
	b.(*array.Float64Builder).Append(v)
	return nil
}

func floats[R any](name, unit, def string, f func(*R) *float64) column[R] {
	return column[R]{name: name, typ: arrow.PrimitiveTypes.Float64, unit: unit, since: 1, def: def,
		put: func(b array.Builder, r *R) error { return putFloat(name, b, *f(r)) },
		get: func(a arrow.Array, i int, r *R) { *f(r) = a.(*array.Float64).Value(i) },
	}
}

func putText(b array.Builder, s string) {
	// Readers refuse text that is no UTF-8, and then the whole file with it.
	b.(*array.StringBuilder).Append(strings.ToValidUTF8(s, "\uFFFD"))
}

func texts[R any, T ~string](name, def string, f func(*R) *T) column[R] {
	return column[R]{name: name, typ: arrow.BinaryTypes.String, since: 1, def: def,
		put: func(b array.Builder, r *R) error { putText(b, string(*f(r))); return nil },
		get: func(a arrow.Array, i int, r *R) { *f(r) = T(strings.Clone(a.(*array.String).Value(i))) },
	}
}

// textsOrNull is a column of texts for which empty means that there is none.
func textsOrNull[R any, T ~string](name, def string, f func(*R) *T) column[R] {
	c := texts(name, def, f)
	c.nullable = true
	put := c.put
	c.put = func(b array.Builder, r *R) error {
		if *f(r) == "" {
			b.AppendNull()
			return nil
		}
		return put(b, r)
	}
	return c
}

func booleans[R any](name, def string, f func(*R) *bool) column[R] {
	return column[R]{name: name, typ: arrow.FixedWidthTypes.Boolean, since: 1, def: def,
		put: func(b array.Builder, r *R) error { b.(*array.BooleanBuilder).Append(*f(r)); return nil },
		get: func(a arrow.Array, i int, r *R) { *f(r) = a.(*array.Boolean).Value(i) },
	}
}

func booleansOrNull[R any](name, def string, f func(*R) **bool) column[R] {
	return column[R]{name: name, typ: arrow.FixedWidthTypes.Boolean, nullable: true, since: 1, def: def,
		put: func(b array.Builder, r *R) error {
			if p := *f(r); p != nil {
				b.(*array.BooleanBuilder).Append(*p)
			} else {
				b.AppendNull()
			}
			return nil
		},
		get: func(a arrow.Array, i int, r *R) { v := a.(*array.Boolean).Value(i); *f(r) = &v },
	}
}

func timesOrNull[R any](name, def string, f func(*R) **time.Time) column[R] {
	return column[R]{name: name, typ: timestampUTC, nullable: true, since: 1, def: def,
		put: func(b array.Builder, r *R) error {
			if p := *f(r); p != nil {
				b.(*array.TimestampBuilder).Append(arrow.Timestamp(p.UnixMicro()))
			} else {
				b.AppendNull()
			}
			return nil
		},
		get: func(a arrow.Array, i int, r *R) {
			v := time.UnixMicro(int64(a.(*array.Timestamp).Value(i))).UTC()
			*f(r) = &v
		},
	}
}

// jsonListsOrNull keeps a list of texts as one JSON text: nested columns hinder
// CSV export and several readers.
func jsonListsOrNull[R any](name, def string, f func(*R) *[]string) column[R] {
	return column[R]{name: name, typ: arrow.BinaryTypes.String, nullable: true, since: 1, def: def,
		put: func(b array.Builder, r *R) error {
			if len(*f(r)) == 0 {
				b.AppendNull()
				return nil
			}
			s, err := json.Marshal(*f(r))
			if err != nil {
				return fmt.Errorf("column %s: %w", name, err)
			}
			putText(b, string(s))
			return nil
		},
		get: func(a arrow.Array, i int, r *R) {
			if err := json.Unmarshal([]byte(a.(*array.String).Value(i)), f(r)); err != nil {
				*f(r) = []string{a.(*array.String).Value(i)}
			}
		},
	}
}

// dictionary marks a column with few different values.
func dictionary[R any](c column[R]) column[R] { c.dict = true; return c }

// labels marks a column that is written for people who query the files; what it
// says is read from elsewhere.
func labels[R any](c column[R]) column[R] { c.dict = true; c.get = nil; return c }

// tableWriter writes one Parquet file, a row group at a time.
type tableWriter[R any] struct {
	table table[R]
	out   io.WriteCloser
	w     *pqarrow.FileWriter
	b     *array.RecordBuilder
	rows  int // in b
	total int64
}

// newTableWriter takes over out, and closes it when it fails.
func newTableWriter[R any](t table[R], out io.WriteCloser, meta map[string]string) (_ *tableWriter[R], err error) {
	props := []parquet.WriterProperty{
		parquet.WithCompression(compress.Codecs.Snappy),
		parquet.WithDictionaryDefault(false),
		parquet.WithCreatedBy("speedmatrix"),
		parquet.WithMaxRowGroupLength(rowGroupRows),
	}
	for _, c := range t.columns {
		if c.dict {
			props = append(props, parquet.WithDictionaryFor(c.name, true))
		}
	}
	schema := t.schema(meta)
	w := &tableWriter[R]{table: t, out: out, b: array.NewRecordBuilder(memory.DefaultAllocator, schema)}
	err = guard(func() error {
		w.w, err = pqarrow.NewFileWriter(schema, noClose{out}, parquet.NewWriterProperties(props...), pqarrow.DefaultWriterProps())
		return err
	})
	if err != nil {
		out.Close()
		return nil, fmt.Errorf("%s: %w", t.file, err)
	}
	return w, nil
}

// noClose keeps the Parquet writer from closing the file, which is synced first.
type noClose struct{ io.Writer }

func (w *tableWriter[R]) put(r *R) error {
	for i := range w.table.columns {
		if err := w.table.columns[i].put(w.b.Field(i), r); err != nil {
			return fmt.Errorf("%s: %w", w.table.file, err)
		}
	}
	w.rows++
	w.total++
	if w.rows == rowGroupRows {
		return w.flush()
	}
	return nil
}

func (w *tableWriter[R]) flush() error {
	if w.rows == 0 {
		return nil
	}
	w.rows = 0
	rec := w.b.NewRecordBatch()
	defer rec.Release()
	if err := guard(func() error { return w.w.Write(rec) }); err != nil {
		return fmt.Errorf("%s: %w", w.table.file, err)
	}
	return nil
}

// close ends the file and syncs it.
func (w *tableWriter[R]) close() error {
	err := w.flush()
	if err == nil {
		err = guard(w.w.Close)
	}
	if f, ok := w.out.(interface{ Sync() error }); ok && err == nil {
		err = f.Sync()
	}
	err = errors.Join(err, w.out.Close())
	if err != nil {
		return fmt.Errorf("%s: %w", w.table.file, err)
	}
	return nil
}

// abort closes the file in whatever state it is.
func (w *tableWriter[R]) abort() {
	if w != nil {
		w.out.Close()
	}
}

// guard turns a panic of the Parquet library into an error: a file may be cut
// short or damaged, and that is no fault of this program.
func guard(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("parquet library: %v", p)
		}
	}()
	return f()
}

// tableReader reads one Parquet file, row by row, with one row of look-ahead.
type tableReader[R any] struct {
	table table[R]
	f     *os.File
	pq    *file.Reader
	rr    pqarrow.RecordReader
	batch arrow.RecordBatch
	cols  []reading[R]
	i     int // next row of batch
	row   R
	have  bool
	read  int64 // rows given out or looked at
}

type reading[R any] struct {
	get func(arrow.Array, int, *R)
	at  int // column of the batch
}

func openTable[R any](dir string, t table[R]) (*tableReader[R], error) {
	path := filepath.Join(dir, t.file)
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	r := &tableReader[R]{table: t, f: f}
	if err := guard(r.open); err != nil {
		r.close()
		return nil, fmt.Errorf("%s: cannot be read, it may have been cut short or damaged: %w", path, err)
	}
	return r, nil
}

func (r *tableReader[R]) open() error {
	var err error
	if r.pq, err = file.NewParquetReader(r.f); err != nil {
		return err
	}
	// Every column gets buffers for a whole batch at once: no more than there are rows.
	batch := max(1, min(8<<10, r.pq.NumRows()))
	fr, err := pqarrow.NewFileReader(r.pq, pqarrow.ArrowReadProperties{BatchSize: batch}, memory.DefaultAllocator)
	if err != nil {
		return err
	}
	schema, err := fr.Schema()
	if err != nil {
		return err
	}
	var leaves []int
	for _, c := range r.table.columns {
		if c.get == nil {
			continue
		}
		found := schema.FieldIndices(c.name)
		switch {
		case len(found) == 0 && c.nullable:
			continue // of a later schema version than this file's
		case len(found) != 1:
			return fmt.Errorf("column %s: found %d times, wanted once", c.name, len(found))
		}
		if got := schema.Field(found[0]).Type; !arrow.TypeEqual(got, c.typ) {
			return fmt.Errorf("column %s: its type is %v, wanted %v", c.name, got, c.typ)
		}
		// All columns are flat, so a field's index is its leaf's. The batch has them in
		// the order of the file.
		leaves = append(leaves, found[0])
		r.cols = append(r.cols, reading[R]{c.get, found[0]})
	}
	slices.Sort(leaves)
	for i := range r.cols {
		r.cols[i].at, _ = slices.BinarySearch(leaves, r.cols[i].at)
	}
	r.rr, err = fr.GetRecordReader(context.Background(), leaves, nil)
	return err
}

// rows is how many rows the file says that it has.
func (r *tableReader[R]) rows() int64 { return r.pq.NumRows() }

// peek returns the next row, or nil at the end. The row is good until the next
// call of peek that follows a take.
func (r *tableReader[R]) peek() (*R, error) {
	if r.have {
		return &r.row, nil
	}
	err := guard(func() error {
		for r.batch == nil || r.i >= int(r.batch.NumRows()) {
			if !r.rr.Next() {
				if err := r.rr.Err(); err != nil && !errors.Is(err, io.EOF) {
					return err
				}
				return io.EOF
			}
			r.batch, r.i = r.rr.RecordBatch(), 0
		}
		var zero R
		r.row = zero
		for _, c := range r.cols {
			if a := r.batch.Column(c.at); a.IsValid(r.i) {
				c.get(a, r.i, &r.row)
			}
		}
		return nil
	})
	if err == io.EOF {
		if r.read != r.rows() {
			return nil, fmt.Errorf("%s: has %d rows, %d could be read", r.f.Name(), r.rows(), r.read)
		}
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("%s: row %d: %w", r.f.Name(), r.read, err)
	}
	r.i++
	r.read++
	r.have = true
	return &r.row, nil
}

func (r *tableReader[R]) take() { r.have = false }

func (r *tableReader[R]) close() {
	if r == nil {
		return
	}
	if r.rr != nil {
		r.rr.Release()
	}
	if r.pq != nil {
		_ = r.pq.Close() // closes the file too
	}
	_ = r.f.Close()
}
