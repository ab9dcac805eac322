// Command bench measures the bridge's parts and the whole of it beside the plain ways to do the same, on the same bytes,
// in one run: rounds interleaved, medians printed. Absolute figures are those of the machine; the ratios are what counts.
//
// The peers (an HTTP server that plays a watch, NATS) run in processes of their own, so that the CPU time of a row is that
// of the code that the row is about.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime/pprof"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/deltabridge/deltabridge/integration/harness"
)

// result is one measurement.
type result struct {
	Events int           // how many
	Wall   time.Duration // from the first to the last
	CPU    time.Duration // user and system, of the process that the row is about
}

func (r result) rate() float64 { return float64(r.Events) / r.Wall.Seconds() }

func (r result) cpuMicros() float64 { return float64(r.CPU.Microseconds()) / float64(r.Events) }

// row is one line of the table.
type row struct {
	name    string
	payload string
	run     func(ctx context.Context) (result, error)
	results []result
}

func main() {
	if role := os.Getenv("BENCH_ROLE"); role != "" {
		serve(role)
		return
	}
	rounds := flag.Int("rounds", 3, "interleaved rounds")
	events := flag.Int("events", 20000, "events of each row")
	skipBridge := flag.Bool("skip-bridge", false, "leave out the row that needs a control plane")
	only := flag.String("rows", "", "regular expression; only rows whose name and payload match are measured")
	profile := flag.String("cpuprofile", "", "where a CPU profile of this process goes; most useful with -rows")
	out := flag.String("json", filepath.Join(harness.RepoRoot(), "bench", "results.json"), "where the results go as JSON")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	match, err := regexp.Compile(*only)
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench: -rows:", err)
		os.Exit(2)
	}
	if *profile != "" {
		f, err := os.Create(*profile)
		if err == nil {
			err = pprof.StartCPUProfile(f)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "bench: -cpuprofile:", err)
			os.Exit(2)
		}
		defer pprof.StopCPUProfile()
	}
	if err := run(ctx, *rounds, *events, *skipBridge, match, *out); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, rounds, events int, skipBridge bool, only *regexp.Regexp, out string) error {
	watch, err := startPeer("watch")
	if err != nil {
		return err
	}
	defer watch.stop()
	broker, err := startPeer("nats")
	if err != nil {
		return err
	}
	defer broker.stop()

	var rows []*row
	for _, p := range payloads {
		rows = append(rows,
			&row{name: "read only (limit)", payload: p.name, run: func(ctx context.Context) (result, error) { return readOnly(ctx, watch.url, p, events) }},
			&row{name: "our stream decoder", payload: p.name, run: func(ctx context.Context) (result, error) { return ourDecoder(ctx, watch.url, p, events) }},
			&row{name: "dynamic informer + json.Marshal", payload: p.name, run: func(ctx context.Context) (result, error) { return dynamicInformer(ctx, watch.url, p, events) }},
		)
	}
	for _, p := range payloads {
		rows = append(rows,
			&row{name: "plain async publish (limit)", payload: p.name, run: func(ctx context.Context) (result, error) { return plainPublish(ctx, broker.url, p, events) }},
			&row{name: "our publisher", payload: p.name, run: func(ctx context.Context) (result, error) { return ourPublisher(ctx, broker.url, p, events) }},
		)
	}
	if !skipBridge {
		whole, err := newWholeBridge(ctx, broker.url)
		if err != nil {
			return err
		}
		defer whole.stop()
		rows = append(rows, &row{name: "whole bridge, backlog", payload: "1 kB", run: func(ctx context.Context) (result, error) {
			return whole.drain(ctx, events)
		}})
	}
	rows = slices.DeleteFunc(rows, func(r *row) bool { return !only.MatchString(r.name + ", " + r.payload) })
	for round := range rounds {
		for _, r := range rows {
			fmt.Fprintf(os.Stderr, "round %d of %d: %s, %s\n", round+1, rounds, r.name, r.payload)
			res, err := r.run(ctx)
			if err != nil {
				return fmt.Errorf("%s, %s: %w", r.name, r.payload, err)
			}
			r.results = append(r.results, res)
		}
	}
	return report(os.Stdout, out, rows, rounds, events)
}

// median of the rounds, by rate; CPU by itself.
func (r *row) median() (rate, cpu float64) {
	rates, cpus := make([]float64, 0, len(r.results)), make([]float64, 0, len(r.results))
	for _, res := range r.results {
		rates, cpus = append(rates, res.rate()), append(cpus, res.cpuMicros())
	}
	slices.Sort(rates)
	slices.Sort(cpus)
	return rates[len(rates)/2], cpus[len(cpus)/2]
}

// compared names, for a row, the row that it is measured against.
var compared = map[string]string{
	"our stream decoder": "dynamic informer + json.Marshal",
	"our publisher":      "plain async publish (limit)",
}

func report(w io.Writer, path string, rows []*row, rounds, events int) error {
	type line struct {
		Row         string  `json:"row"`
		Payload     string  `json:"payload"`
		Rate        float64 `json:"eventsPerSecond"`
		CPU         float64 `json:"cpuMicrosPerEvent"`
		ComparedTo  string  `json:"comparedTo,omitempty"`
		RateRatio   float64 `json:"rateRatio,omitempty"`
		CPURatio    float64 `json:"cpuRatio,omitempty"`
		Measurement int     `json:"rounds"`
	}
	find := func(name, payload string) *row {
		for _, r := range rows {
			if r.name == name && r.payload == payload {
				return r
			}
		}
		return nil
	}
	var lines []line
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(w, "\n%d events a row, medians of %d interleaved rounds\n\n", events, rounds)
	fmt.Fprintln(t, "row\tpayload\tevents/s\tCPU µs/event\tcompared\t")
	for _, r := range rows {
		rate, cpu := r.median()
		l := line{Row: r.name, Payload: r.payload, Rate: rate, CPU: cpu, Measurement: len(r.results)}
		note := ""
		if base := find(compared[r.name], r.payload); base != nil {
			baseRate, baseCPU := base.median()
			l.ComparedTo, l.RateRatio, l.CPURatio = base.name, rate/baseRate, cpu/baseCPU
			note = fmt.Sprintf("%.2f × the rate and %.2f × the CPU of %s", l.RateRatio, l.CPURatio, strings.TrimSuffix(base.name, " (limit)"))
		}
		fmt.Fprintf(t, "%s\t%s\t%.0f\t%.1f\t%s\t\n", r.name, r.payload, rate, cpu, note)
		lines = append(lines, l)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	body, err := json.MarshalIndent(lines, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(path, append(body, '\n'), 0o644); err != nil {
		return err
	}
	fmt.Fprintf(w, "\nwritten to %s\n", path)
	return nil
}

// cpuTime returns this process's user and system time.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// measure runs f, which handles n events, and returns what it took.
func measure(n int, f func() error) (result, error) {
	cpu, begin := cpuTime(), time.Now()
	if err := f(); err != nil {
		return result{}, err
	}
	return result{Events: n, Wall: time.Since(begin), CPU: cpuTime() - cpu}, nil
}
