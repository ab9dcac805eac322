package harness

import (
	"context"
	"fmt"
	"testing"
	"time"
)

// The pause between two attempts grows from the first to the second.
const (
	firstPause = 20 * time.Millisecond
	lastPause  = 300 * time.Millisecond
)

// Eventually calls f until it returns nil, and ends the test with f's last error when that takes longer than timeout.
func Eventually(t testing.TB, timeout time.Duration, f func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	if err := poll(ctx, f); err != nil {
		t.Fatalf("not so after %s: %v", timeout, err)
	}
}

// Never calls f over and over for d, and ends the test when it returns an error. It is for what must not happen; d is
// how long the test looks, not how long anything may take.
func Never(t testing.TB, d time.Duration, f func() error) {
	t.Helper()
	end := time.Now().Add(d)
	for {
		if err := f(); err != nil {
			t.Fatalf("within %s: %v", d, err)
		}
		if !time.Now().Before(end) {
			return
		}
		time.Sleep(lastPause)
	}
}

// poll calls f until it returns nil or ctx is done, and then returns f's last error.
func poll(ctx context.Context, f func() error) error {
	pause := firstPause
	for {
		err := f()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w (%w)", err, context.Cause(ctx))
		case <-time.After(pause):
		}
		pause = min(pause*3/2, lastPause)
	}
}
