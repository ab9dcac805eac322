package chaos

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/deltabridge/deltabridge/integration/check"
)

// Table returns what came of some rounds as Markdown: a row for each round, and a row for each kind of fault.
func Table(results []*Result) string {
	var b strings.Builder
	b.WriteString("| seed | mix | load steps | faults | versions | messages | gaps | in gaps | inversions | duplicates | " +
		"lost | lost deletions | wrong final states | watermarks ahead | other | control | time |\n")
	b.WriteString("|" + strings.Repeat("---|", 17) + "\n")
	for _, r := range results {
		b.WriteString(r.row())
	}
	b.WriteString("\n" + faultTable(results))
	return b.String()
}

func (r *Result) row() string {
	report := r.Bridge.Report
	if report == nil {
		report = &check.Report{}
	}
	final := report.Missing + report.Stale
	other := len(report.Violations) - len(r.Bridge.Broken()) + len(r.Bridge.Misdeeds) + len(r.Bridge.Unrecorded)
	other += r.Bridge.Withheld
	if r.Bridge.Restless != "" {
		other++
	}
	control := "none"
	if r.Control != nil {
		control = fmt.Sprintf("%d broken", len(r.Control.Broken()))
	}
	return fmt.Sprintf("| %d | %s | %d | %d | %d | %d | %d | %d | %d | %d | %d | %d | %d | %d | %d | %s | %s |\n",
		r.Plan.Seed, r.Plan.Mix.Name, r.Plan.Steps, len(r.Injected), report.Recorded, report.Messages, report.Gaps,
		report.MarkedHere+report.MarkedElsewhere, report.Inversions, report.Duplicates, report.Lost, report.LostDeletes,
		final, report.Ahead, other, control, r.Took.Round(time.Second))
}

// faultTable tells of each kind of fault how often it happened, and how often no finding can come from it.
func faultTable(results []*Result) string {
	injected, survived := map[Kind]int{}, map[Kind]int{}
	for _, r := range results {
		guilty := map[int]bool{}
		if r.Bridge.Report != nil {
			for _, v := range r.Bridge.Report.Violations {
				for _, i := range r.causes(v) {
					guilty[i.Number] = true
				}
			}
		}
		for _, i := range r.Injected {
			injected[i.Kind]++
			if !guilty[i.Number] && r.Bridge.Report != nil {
				survived[i.Kind]++
			}
		}
	}
	var b strings.Builder
	b.WriteString("| fault | injected | survived |\n|---|---|---|\n")
	for _, kind := range slices.Sorted(maps.Keys(injected)) {
		fmt.Fprintf(&b, "| %s | %d | %d |\n", kind, injected[kind], survived[kind])
	}
	return b.String()
}
