package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"
)

// Colours, by what they are used for.
const (
	green  = "32"
	yellow = "33"
	red    = "31"
	cyan   = "36"
	dim    = "2"
	bold   = "1"
)

// The widths of the columns.
const (
	typeWidth    = 9
	subjectWidth = 48
	versionWidth = 7
)

// terminal writes the demo's output. Its methods may be called by several goroutines.
type terminal struct {
	mu      sync.Mutex
	out     io.Writer
	colours bool
}

// newTerminal returns a terminal that uses colours only where a person looks and has not asked for none.
func newTerminal(out *os.File) *terminal {
	info, err := out.Stat()
	tty := err == nil && info.Mode()&os.ModeCharDevice != 0
	return &terminal{out: out, colours: tty && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"}
}

func (t *terminal) paint(colour, text string) string {
	if !t.colours || text == "" {
		return text
	}
	return "\x1b[" + colour + "m" + text + "\x1b[0m"
}

func (t *terminal) printf(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	fmt.Fprintf(t.out, format, args...)
}

// step says what is being done, does it, and says how long that took. The context is the one that do uses.
func (t *terminal) step(ctx context.Context, what string, do func() error) error {
	t.printf("  %-44s", what)
	begin := time.Now()
	err := do()
	switch {
	case err != nil && ctx.Err() != nil:
		t.printf("%s\n", t.paint(dim, "interrupted"))
		return err
	case err != nil:
		t.printf("%s\n", t.paint(red, "failed"))
		return err
	}
	t.printf("%s\n", t.paint(dim, fmt.Sprintf("%5.1fs", time.Since(begin).Seconds())))
	return nil
}

// header writes the columns' names.
func (t *terminal) header() {
	t.printf("%s\n", t.paint(bold, fmt.Sprintf("%-12s  %-*s  %-*s  %*s  %s", "TIME", typeWidth, "TYPE",
		subjectWidth, "SUBJECT", versionWidth, "VERSION", "WHAT CHANGED")))
}

// action says what the demo does to the cluster.
func (t *terminal) action(what string) {
	t.printf("%s\n", t.paint(dim, time.Now().Format("15:04:05.000")+"  ▸ "+what))
}

// row is one message as it is shown.
type row struct {
	at      time.Time
	op      string
	subject string
	version string
	edits   []edit
	more    int // edits that are not shown
	note    string
}

// message shows one message.
func (t *terminal) message(r row) {
	colour := map[string]string{"added": green, "modified": yellow, "deleted": red, "left": red, "synced": cyan}[r.op]
	if colour == "" {
		colour = dim
	}
	parts := []string{}
	for _, e := range r.edits {
		parts = append(parts, t.edit(e))
	}
	if r.more > 0 {
		parts = append(parts, t.paint(dim, fmt.Sprintf("and %d more", r.more)))
	}
	what := strings.TrimSpace(strings.Join(parts, ", ") + " " + t.paint(dim, r.note))
	line := fmt.Sprintf("%s  %s  %-*s  %*s  %s", r.at.Format("15:04:05.000"),
		t.paint(colour, fmt.Sprintf("%-*s", typeWidth, r.op)), subjectWidth, r.subject, versionWidth, r.version, what)
	t.printf("%s\n", strings.TrimRight(line, " "))
}

func (t *terminal) edit(e edit) string {
	switch e.mark {
	case added:
		return t.paint(green, "+") + e.path + ": " + t.paint(green, e.new)
	case removed:
		return t.paint(red, "-"+e.path)
	default:
		return e.path + ": " + t.paint(red, e.old) + " → " + t.paint(green, e.new)
	}
}
