package record

import "time"

// Cell is one row of cells.parquet: a trial's identity and status with the
// metrics computed from it, or a row read from a published page.
type Cell struct {
	Seq    int    `json:"seq"` // order on the page, 0-based
	StepID string `json:"step_id"`
	Point
	Repeat      int         `json:"repeat"`
	Launch      int         `json:"launch"`
	Status      Status      `json:"status"`
	Reason      string      `json:"reason,omitempty"`
	FailureKind FailureKind `json:"failure_kind,omitempty"`
	StartedAt   *time.Time  `json:"started_at,omitempty"` // nil for published and skipped rows
	TokenSource string      `json:"token_source,omitempty"`
	Warnings    []string    `json:"warnings,omitempty"`

	// Values holds the metrics by the name they have in package metric. A metric
	// that was not measured is absent. Values are finite.
	Values map[string]float64 `json:"values,omitempty"`
}

// Value returns a metric and whether it is known.
func (c *Cell) Value(name string) (float64, bool) {
	v, ok := c.Values[name]
	return v, ok
}

// Token sources of a cell, best first.
const (
	TokensRunning    = "running_usage"
	TokensFinal      = "final_usage"
	TokensRetokenise = "retokenised"
	TokensUnknown    = "unknown"
	TokensPublished  = "published"
)
