package main

import (
	"errors"
	"os"
	"path/filepath"

	"speedmatrix/report"
	"speedmatrix/report/html"
	"speedmatrix/report/markdown"
	"speedmatrix/results/store"
)

// pagePath is where the page of a run directory is.
func pagePath(run string) string { return filepath.Join(run, "report", "index.html") }

// renderStored is renderInto for the store.
func renderStored(dir string, s *store.Stored) error { return renderInto(dir, s) }

// renderInto writes the pages of a source into dir.
func renderInto(dir string, src report.Source) error {
	page, err := report.Build(src)
	if err != nil {
		return err
	}
	return writePages(dir, page)
}

func writePages(dir string, page *report.Page) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	h, err := os.Create(filepath.Join(dir, "index.html"))
	if err != nil {
		return err
	}
	if err := errors.Join(html.Render(h, page), h.Close()); err != nil {
		return err
	}
	m, err := os.Create(filepath.Join(dir, "report.md"))
	if err != nil {
		return err
	}
	return errors.Join(markdown.Render(m, page), m.Close())
}
