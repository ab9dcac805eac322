package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/deltabridge/deltabridge/internal/config"
	"github.com/deltabridge/deltabridge/internal/control"
	"github.com/deltabridge/deltabridge/internal/publisher"
)

const resyncUsage = `Usage:
  bridge resync [--resource R]... [--namespace N] [--selector S]

Asks the running bridge of BRIDGE_CLUSTER, over NATS, to publish the present state again: what differs from the
stream as a repair, everything else as synced. Without flags it means everything that the bridge follows.

  --resource R    "pods", "deployments.apps"; may be given several times
  --namespace N   one namespace
  --selector S    a label selector, as in kubectl; deletions are not looked for then

Exit codes: 0 done, 1 failed, 2 usage.
`

// connectPatience is how long a command waits for NATS.
const connectPatience = 10 * time.Second

// runResync asks a running bridge for a resync, prints the progress, and returns the exit code.
func runResync(ctx context.Context, args, environ []string, stdout, stderr io.Writer) int {
	request, err := parseResync(args)
	if errors.Is(err, flag.ErrHelp) {
		fmt.Fprint(stdout, resyncUsage)
		return exitOK
	}
	if err != nil {
		fmt.Fprintf(stderr, "bridge resync: %v\n\n%s", err, resyncUsage)
		return exitConfig
	}
	c, warnings, err := config.Load(environ)
	for _, w := range warnings {
		fmt.Fprintln(stderr, "warning:", w)
	}
	if err != nil {
		fmt.Fprintln(stderr, err)
		return exitConfig
	}
	said := ""
	done, err := askResync(ctx, c, request, func(p control.Progress) {
		if text := describeProgress(p); text != said {
			said = text
			fmt.Fprintln(stdout, text)
		}
	})
	if done.Done {
		fmt.Fprintln(stdout, describeProgress(done))
	}
	if err == nil {
		return exitOK
	}
	fmt.Fprintln(stderr, "bridge resync:", err)
	if refused := (*control.Error)(nil); errors.As(err, &refused) && refused.Code == control.CodeBadRequest {
		return exitConfig
	}
	return exitFailed
}

// parseResync reads the command's flags.
func parseResync(args []string) (control.Request, error) {
	var r control.Request
	flags := flag.NewFlagSet("resync", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.Func("resource", "", func(name string) error {
		if name == "" {
			return errors.New("empty")
		}
		r.Resources = append(r.Resources, name)
		return nil
	})
	flags.StringVar(&r.Namespace, "namespace", "", "")
	flags.StringVar(&r.Selector, "selector", "", "")
	if err := flags.Parse(args); err != nil {
		return r, err
	}
	if flags.NArg() > 0 {
		return r, fmt.Errorf("takes flags only, got %q", flags.Args())
	}
	if _, err := labels.Parse(r.Selector); err != nil {
		return r, fmt.Errorf("--selector %q: %w", r.Selector, err)
	}
	return r, nil
}

// askResync connects to NATS and asks.
func askResync(ctx context.Context, c *config.Config, request control.Request, report func(control.Progress)) (control.Progress, error) {
	options := connOptions(c)
	options.Name += " resync"
	conn := publisher.NewConn(options, slog.New(slog.DiscardHandler))
	connection, disconnect := context.WithCancel(context.WithoutCancel(ctx))
	var wg sync.WaitGroup
	wg.Go(func() { conn.Run(connection) })
	defer wg.Wait()
	defer disconnect()
	soon, cancel := context.WithTimeout(ctx, connectPatience)
	defer cancel()
	if err := conn.WaitConnected(soon); err != nil {
		return control.Progress{}, errors.Join(conn.Err(), ctx.Err())
	}
	nc := natsConn(conn)
	if nc == nil {
		return control.Progress{}, conn.Err()
	}
	return control.Resync(ctx, nc, c.Cluster, request, report)
}

// describeProgress returns one line for a terminal.
func describeProgress(p control.Progress) string {
	what := p.Resource
	switch {
	case p.Done:
		what = "done"
	case what == "":
		what = "beginning"
	}
	parts := []string{fmt.Sprintf("%s: %d objects, %d synced, %d repaired, %d deleted", what, p.Total, p.Synced, p.Repaired, p.Deleted)}
	if p.Overtaken > 0 {
		parts = append(parts, fmt.Sprintf("%d changed meanwhile", p.Overtaken))
	}
	return strings.Join(parts, ", ")
}
