// Command demo shows deltabridge at work: it starts a Kubernetes API server, NATS with JetStream and the bridge, changes
// objects of several kinds, and shows each message as a plain NATS consumer receives it, until Ctrl-C.
//
// DEMO_FOR ends it after that time. With DEMO_KUBECONFIG it watches that cluster instead of one of its own, in which
// it creates nothing. Variables of the bridge (BRIDGE_…) are handed on to it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/deltabridge/deltabridge/integration/harness"
)

const (
	// readyTimeout is how long the bridge may take until it is in sync. A cluster of somebody's own can be large.
	readyTimeout = 2 * time.Minute
	// stopTimeout is a little more than the bridge grants itself to drain.
	stopTimeout = 30 * time.Second
)

func main() {
	// A second signal changes nothing: timeout(1) and make send theirs twice, stopping takes a second or two, and every step
	// of it has a time limit. An exit half way would leave folders behind.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "\ndemo:", err)
		os.Exit(1)
	}
}

// demo is what runs.
type demo struct {
	terminal *terminal
	bridge   string        // the binary's path
	duration time.Duration // zero for until Ctrl-C
	dir      string        // holds the stream; goes away

	kubeconfig string // of the cluster that is watched
	own        *harness.ControlPlane
	nats       *harness.NATS
	process    *harness.Bridge
	env        map[string]string // the bridge's
}

func run(ctx context.Context, args []string) (err error) {
	flags := flag.NewFlagSet("demo", flag.ContinueOnError)
	bridge := flags.String("bridge", filepath.Join(harness.RepoRoot(), "bin", "bridge"), "the bridge's binary")
	if err = flags.Parse(args); err != nil {
		return err
	}
	d := &demo{terminal: newTerminal(os.Stdout), bridge: *bridge, kubeconfig: os.Getenv("DEMO_KUBECONFIG")}
	if text := os.Getenv("DEMO_FOR"); text != "" {
		if d.duration, err = time.ParseDuration(text); err != nil || d.duration <= 0 {
			return fmt.Errorf("DEMO_FOR=%s: not a duration such as 30s or 5m", text)
		}
	}
	if d.kubeconfig != "" {
		if _, err = os.Stat(d.kubeconfig); err != nil {
			return fmt.Errorf("DEMO_KUBECONFIG: %w", err)
		}
	}
	if d.dir, err = os.MkdirTemp("", "deltabridge-demo-"); err != nil {
		return fmt.Errorf("make a folder: %w", err)
	}
	defer func() { err = errors.Join(err, d.stop()) }()
	err = d.start(ctx)
	switch {
	case err == nil:
		return d.watch(ctx)
	case ctx.Err() != nil:
		return nil // Ctrl-C while it started; the error only tells what that interrupted
	default:
		return err
	}
}

// start starts everything, in the order in which one thing needs another.
func (d *demo) start(ctx context.Context) error {
	d.terminal.printf("%s\n\n", d.terminal.paint(bold, "deltabridge: a cluster's changes, in NATS"))
	err := d.terminal.step(ctx, "starting NATS with JetStream", func() (err error) {
		d.nats, err = harness.NewNATS(filepath.Join(d.dir, "jetstream"))
		return err
	})
	if err != nil {
		return err
	}
	if d.kubeconfig == "" {
		if err := d.startCluster(ctx); err != nil {
			return err
		}
	}
	return d.terminal.step(ctx, "starting the bridge", func() error { return d.startBridge(ctx) })
}

// startCluster starts a control plane, and makes what is in it before the bridge looks.
func (d *demo) startCluster(ctx context.Context) error {
	err := d.terminal.step(ctx, "starting etcd and kube-apiserver", func() (err error) {
		d.own, err = harness.StartControlPlane(ctx, harness.ControlPlaneConfig{})
		return err
	})
	if err != nil {
		return err
	}
	d.kubeconfig = d.own.Kubeconfig()
	return d.terminal.step(ctx, "creating a namespace and a custom resource", func() error {
		w, err := newWorld(d.own.Dynamic(), d.terminal.action)
		if err != nil {
			return err
		}
		return w.prepare(ctx)
	})
}

// startBridge starts the bridge and waits until it is in sync with the cluster.
func (d *demo) startBridge(ctx context.Context) error {
	d.env = map[string]string{}
	for _, variable := range os.Environ() {
		name, value, _ := strings.Cut(variable, "=")
		// A kubeconfig of somebody's own may run a program that needs whatever is in the environment.
		if d.own == nil || strings.HasPrefix(name, "BRIDGE_") {
			d.env[name] = value
		}
	}
	d.env["KUBECONFIG"], d.env["NATS_URL"] = d.kubeconfig, d.nats.URL()
	defaults := map[string]string{
		"BRIDGE_CLUSTER": "demo", "BRIDGE_STREAM": "KUBE", "BRIDGE_SUBJECT_PREFIX": "kube", "BRIDGE_LOG_FORMAT": "text",
	}
	if d.own != nil {
		defaults["BRIDGE_RESOURCES"] = "namespaces,nodes,configmaps,secrets,services,pods,deployments.apps,jobs.batch," +
			"widgets.demo.deltabridge.io"
	}
	for name, value := range defaults {
		if d.env[name] == "" {
			d.env[name] = value
		}
	}
	var err error
	if d.process, err = harness.LaunchBridge(d.bridge, d.env); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	for {
		err := d.process.Ready(ctx)
		if err == nil {
			return nil
		}
		if !d.process.Running() {
			return d.bridgeEnded()
		}
		if waited := wait(ctx, 100*time.Millisecond); waited != nil {
			return fmt.Errorf("wait for the bridge: %w: %w\nIts log ends:\n%s", waited, err, d.process.Tail(20))
		}
	}
}

// watch shows what happens until the context ends, the time is over, or something fails.
func (d *demo) watch(ctx context.Context) error {
	conn, err := nats.Connect(d.nats.URL(), nats.MaxReconnects(-1))
	if err != nil {
		return fmt.Errorf("connect to NATS: %w", err)
	}
	defer conn.Close()
	subjects := d.env["BRIDGE_SUBJECT_PREFIX"] + "." + d.env["BRIDGE_CLUSTER"] + ".>"
	follower, err := newFollower(ctx, conn, d.env["BRIDGE_STREAM"], subjects, d.terminal)
	if err != nil {
		return err
	}
	d.explain()
	d.terminal.header()

	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if d.duration > 0 {
		timer := time.AfterFunc(d.duration, func() { cancel(nil) })
		defer timer.Stop()
	}
	var running sync.WaitGroup
	running.Go(func() { cancel(follower.run(ctx)) })
	if d.own != nil {
		running.Go(func() {
			w, err := newWorld(d.own.Dynamic(), d.terminal.action)
			if err == nil {
				err = w.run(ctx)
			}
			cancel(err)
		})
	}
	running.Go(func() {
		select {
		case <-ctx.Done():
		case <-d.process.Done():
			cancel(d.bridgeEnded())
		}
	})
	running.Wait()
	d.terminal.printf("\n%s\n\n", follower.summary())
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// explain says how to look at all this with other programs.
func (d *demo) explain() {
	t := d.terminal
	t.printf("\n%s\n", t.paint(bold, "Look around from another terminal:"))
	line := func(command, what string) { t.printf("  %-66s  %s\n", command, t.paint(dim, what)) }
	if d.own != nil {
		line("export KUBECONFIG="+d.kubeconfig, "")
		line("kubectl -n demo get configmaps,deployments,pods,widgets", "the cluster")
		line("kubectl -n demo create configmap mine --from-literal=hello=world", "a change of yours")
	} else {
		line("kubectl --kubeconfig "+d.kubeconfig+" get namespaces", "the cluster")
	}
	line("nats -s "+d.nats.URL()+" stream view "+d.env["BRIDGE_STREAM"], "what is stored")
	line("nats -s "+d.nats.URL()+" sub '"+d.env["BRIDGE_SUBJECT_PREFIX"]+".>'", "what arrives")
	line("curl '"+d.process.URL("/readyz?verbose")+"'", "also /statusz and /metrics")
	until := "Ctrl-C stops it."
	if d.duration > 0 {
		until = fmt.Sprintf("Ends after %s; Ctrl-C stops it.", d.duration)
	}
	t.printf("\n%s\n\n", until)
}

// stop ends everything in the reverse order, and removes the folder. The bridge drains first, with all it needs still up.
func (d *demo) stop() error {
	var errs []error
	if d.process != nil && d.process.Running() {
		errs = append(errs, d.terminal.step(context.Background(), "stopping the bridge", func() error {
			if err := d.process.Stop(stopTimeout); err != nil {
				return err
			}
			if d.process.ExitCode() != 0 {
				return d.bridgeEnded()
			}
			return nil
		}))
	}
	if d.own != nil {
		errs = append(errs, d.terminal.step(context.Background(), "stopping kube-apiserver and etcd", d.own.Stop))
	}
	if d.nats != nil {
		d.nats.Stop()
	}
	return errors.Join(append(errs, os.RemoveAll(d.dir))...)
}

// bridgeEnded is the error for a bridge that ended when it should not, or not as it should.
func (d *demo) bridgeEnded() error {
	return fmt.Errorf("the bridge exited with code %d. Its log ends:\n%s", d.process.ExitCode(), d.process.Tail(20))
}
