package chaos

import (
	"fmt"
	"maps"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/deltabridge/deltabridge/integration/check"
	"github.com/deltabridge/deltabridge/integration/harness"
)

const (
	// shutdownGrace is the bridge's own; a broker out of reach must not hold up the round for long.
	shutdownGrace = "5s"
	// stopPatience is how long a bridge may take after SIGTERM until it is killed.
	stopPatience = time.Minute
	// takeoverPatience is how long is waited for a second process to take over.
	takeoverPatience = 20 * time.Second

	bridgeName, controlName = "bridge", "control"
)

// contestant is a program that goes through a round: the bridge, or the control. There is one process of it, mostly.
type contestant struct {
	name   string
	binary string
	env    map[string]string
	check  check.Case

	mu       sync.Mutex
	main     *harness.Bridge   // the one that is in charge now
	all      []*harness.Bridge // every one that was started
	misdeeds []string          // what it did that no fault asked for
}

// newContestant prepares a program with a stream of its own.
func (a *Arena) newContestant(name, binary, stream, prefix string) *contestant {
	return &contestant{
		name: name, binary: binary,
		check: check.Case{JS: a.js, Stream: stream, Prefix: prefix, Client: a.client, Selection: selection()},
		env: map[string]string{
			"KUBECONFIG":                a.kubeconfig,
			"NATS_URL":                  a.natsURLs(),
			"BRIDGE_RESOURCES":          resourceNames(),
			"BRIDGE_CLUSTER":            "main",
			"BRIDGE_STREAM":             stream,
			"BRIDGE_SUBJECT_PREFIX":     prefix,
			"BRIDGE_STREAM_REPLICAS":    fmt.Sprint(natsNodes),
			"BRIDGE_STREAM_HISTORY":     "-1", // the checker wants to see everything
			"BRIDGE_WATERMARK_INTERVAL": "1s",
			"BRIDGE_SHUTDOWN_GRACE":     shutdownGrace,
		},
	}
}

// launch starts another process.
func (c *contestant) launch() (*harness.Bridge, error) {
	b, err := harness.LaunchBridge(c.binary, maps.Clone(c.env))
	if err != nil {
		return nil, fmt.Errorf("start the %s: %w", c.name, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = append(c.all, b)
	return b, nil
}

// start starts the process that is in charge from now on.
func (c *contestant) start() error {
	b, err := c.launch()
	if err != nil {
		return err
	}
	c.take(b)
	return nil
}

// take puts a process in charge.
func (c *contestant) take(b *harness.Bridge) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.main = b
}

// alive starts the process in charge again if it has ended by itself, which is noted.
func (c *contestant) alive() error {
	c.mu.Lock()
	b := c.main
	c.mu.Unlock()
	if b.Running() {
		return nil
	}
	c.blame("process %d ended by itself with code %d; its log ends:\n%s", b.PID(), b.ExitCode(), b.Tail(5))
	return c.start()
}

func (c *contestant) blame(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.misdeeds = append(c.misdeeds, fmt.Sprintf(format, args...))
}

// term asks a process to end, and kills it if it does not.
func (c *contestant) term(b *harness.Bridge) error {
	if err := b.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	select {
	case <-b.Done():
		return nil
	case <-time.After(stopPatience):
		c.blame("process %d still runs %s after SIGTERM", b.PID(), stopPatience)
		return b.Kill()
	}
}

// end ends everything, and notes what none of it may have in its log.
func (c *contestant) end() {
	for _, b := range c.all {
		if err := b.Kill(); err != nil {
			c.blame("%v", err)
		}
		for _, bug := range []string{"panic: ", "fatal error: ", "WARNING: DATA RACE"} {
			if i := strings.Index(b.Stderr(), bug); i >= 0 {
				c.blame("process %d has a bug:\n%s", b.PID(), b.Stderr()[i:min(len(b.Stderr()), i+3000)])
			}
		}
	}
}
