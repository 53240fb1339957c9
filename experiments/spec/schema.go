package spec

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"
)

// Schema returns the JSON Schema of the format (draft 2020-12), for editors. It
// says what a key is, not what fits together; Parse does.
func Schema() []byte {
	top := (&object{fields: keys(New())}).schema()
	top["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	top["title"] = "speedmatrix experiment"
	top["description"] = "What to measure: an engine, its serve command, and a matrix of contexts and simultaneous requests. FORMAT.md beside this file has every key."
	source := top["properties"].(map[string]any)["engine"].(map[string]any)["properties"].(map[string]any)["source"].(map[string]any)
	var one []any
	for _, k := range sourceKinds {
		one = append(one, map[string]any{"required": []string{k}})
	}
	source["oneOf"] = one
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(top); err != nil {
		panic(err) // maps, texts and numbers always encode
	}
	return b.Bytes()
}

func (f *field) schema() map[string]any {
	s := f.value.schema()
	doc := f.doc + "."
	if f.standard != "" {
		doc += " Default: " + f.standard + "."
	}
	s["description"] = doc
	if _, ok := f.value.(*object); ok {
		return s
	}
	if d := f.standardText(); d != "" && f.standard == "" {
		switch f.value.(type) {
		case *integer, *integer64, *tokens[int], *tokens[int64]:
			if i, err := strconv.Atoi(d); err == nil {
				s["default"] = i
			}
		case *boolean:
			s["default"] = d == "true"
		default:
			s["default"] = strings.TrimSpace(d)
		}
	}
	return s
}
