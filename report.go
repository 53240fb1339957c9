package main

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"speedmatrix/report"
	"speedmatrix/report/text"
	"speedmatrix/results/store"
)

func reportCmd(p process) *cobra.Command {
	var out string
	var asText bool
	c := &cobra.Command{
		Use:   "report RUN…",
		Short: "Render the page of stored runs again, from their files alone",
		Long: `Report reads run folders and writes index.html and report.md for each into
OUT/<run id>/. The same run gives the same bytes.`,
		Example: `  speedmatrix report results/20261130T201947Z-quickstart-1a2b3c
  speedmatrix report results/20261130T201947Z-quickstart-1a2b3c --text`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			for _, path := range args {
				if err := reportVerb(p, path, out, asText); err != nil {
					return fmt.Errorf("%s: %w", path, err)
				}
			}
			return nil
		},
	}
	c.Flags().StringVarP(&out, "out", "o", "reports", "folder to write into")
	c.Flags().BoolVar(&asText, "text", false, "print the page on standard output as text instead")
	return c
}

func reportVerb(p process, path, out string, asText bool) error {
	run, err := store.Open(path)
	if err != nil {
		return err
	}
	for _, err := range run.Verify() {
		fmt.Fprintf(p.stderr, "warning: %s\n", printable(err.Error()))
	}
	page, err := report.Build(run)
	if err != nil {
		return err
	}
	if asText {
		return text.Render(p.stdout, page)
	}
	dir := filepath.Join(out, run.Record().ID)
	files, err := relative(dir, run.Dir())
	if err != nil {
		return err
	}
	// The page links the run's files as seen from the run's own report folder.
	for i, d := range page.Downloads {
		if rest, ok := strings.CutPrefix(d.Href, "../"); ok {
			page.Downloads[i].Href = files + "/" + rest
		}
	}
	if err := writePages(dir, page); err != nil {
		return err
	}
	_, err = fmt.Fprintln(p.stdout, filepath.Join(dir, "index.html"))
	return err
}

// relative is the way from the folder of a page to the files it links.
func relative(from, to string) (string, error) {
	from, err := filepath.Abs(from)
	if err != nil {
		return "", err
	}
	to, err = filepath.Abs(to)
	if err != nil {
		return "", err
	}
	rel, err := filepath.Rel(from, to)
	return filepath.ToSlash(rel), err
}
