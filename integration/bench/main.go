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
			&row{name: "plain async publish, bodies alone (limit)", payload: p.name, run: func(ctx context.Context) (result, error) {
				return plainPublish(ctx, broker.url, p, events, bareMessages)
			}},
			&row{name: "plain async publish, same messages", payload: p.name, run: func(ctx context.Context) (result, error) {
				return plainPublish(ctx, broker.url, p, events, sameMessages)
			}},
			&row{name: "our publisher", payload: p.name, run: func(ctx context.Context) (result, error) {
				return ourPublisher(ctx, broker.url, p, events, coldObjects)
			}},
			&row{name: "our publisher, hot objects", payload: p.name, run: func(ctx context.Context) (result, error) {
				return ourPublisher(ctx, broker.url, p, events, hotObjects)
			}},
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
		again := &restarts{whole: whole, nats: broker.url}
		rows = append(rows,
			&row{name: "dynamic informer, first sync", payload: "1 kB", run: again.informer},
			&row{name: "whole bridge, restart", payload: "1 kB", run: again.bridge})
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

// compared names, for a row, the rows that it is measured against.
var compared = map[string][]string{
	"our stream decoder":         {"dynamic informer + json.Marshal"},
	"whole bridge, restart":      {"dynamic informer, first sync"},
	"our publisher, hot objects": {"our publisher"},
	"our publisher":              {"plain async publish, same messages", "plain async publish, bodies alone (limit)"},
}

// comparison is a row's medians in terms of another row's.
type comparison struct {
	To   string  `json:"to"`
	Rate float64 `json:"rateRatio"`
	CPU  float64 `json:"cpuRatio"`
}

func (c comparison) String() string {
	return fmt.Sprintf("%.2f × the rate, %.2f × the CPU of %s", c.Rate, c.CPU, strings.TrimSuffix(c.To, " (limit)"))
}

// legend says what the rows are.
const legend = `
read only         lines of a watch response, read over loopback and thrown away
decoder           the bridge's ListWatch on the same response, up to what client-go's Reflector is given
dynamic informer  client-go's, on the same response, with json.Marshal in its handler
plain, bodies     PublishMsgAsync of client nats.go; no header, no id, no order
plain, same       the same with the headers and the id that the publisher's messages have
publisher         the bridge's: encoding, ledger, one append in flight for each of 10,000 objects, compare-and-set
hot objects       the same changes as those of 10 objects, so that many versions of each wait and leave as atomic batches
whole bridge      the binary, from SIGCONT to the last message in the stream; while it was stopped, the updates were
                  made to 500 ConfigMaps on a real API server, and each of them arrives
first sync        a dynamic informer's, of 50,000 ConfigMaps that are listed
restart           the binary, from its start to ready, with those 50,000 objects published and unchanged; nothing is published again
CPU is user and system time of the process that a row is about; the watch's server, NATS and the control plane have
processes of their own, on the same cores. The publishing rows have one stream, in a file, and 2,048 in flight.
`

func report(w io.Writer, path string, rows []*row, rounds, events int) error {
	type line struct {
		Row         string       `json:"row"`
		Payload     string       `json:"payload"`
		Rate        float64      `json:"eventsPerSecond"`
		CPU         float64      `json:"cpuMicrosPerEvent"`
		Compared    []comparison `json:"compared,omitempty"`
		Measurement int          `json:"rounds"`
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
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "\n%d events a row, medians of %d interleaved rounds\n\n", events, rounds)
	fmt.Fprintln(t, "row\tpayload\tevents/s\tCPU µs/event\tcompared")
	for _, r := range rows {
		rate, cpu := r.median()
		l := line{Row: r.name, Payload: r.payload, Rate: rate, CPU: cpu, Measurement: len(r.results)}
		for _, name := range compared[r.name] {
			if base := find(name, r.payload); base != nil {
				baseRate, baseCPU := base.median()
				l.Compared = append(l.Compared, comparison{To: base.name, Rate: rate / baseRate, CPU: cpu / baseCPU})
			}
		}
		fmt.Fprintf(t, "%s\t%s\t%8.0f\t%8.1f", r.name, r.payload, rate, cpu)
		for i, c := range l.Compared {
			if i > 0 {
				fmt.Fprint(t, "\n\t\t\t")
			}
			fmt.Fprintf(t, "\t%s", c)
		}
		fmt.Fprintln(t)
		lines = append(lines, l)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprint(w, legend)
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
