package publisher

import (
	"bytes"
	"testing"

	"github.com/deltabridge/deltabridge/internal/change"
)

// repetition returns the state of a pod as a resync hands it on.
func repetition(reason change.Reason, name, uid string, rv int, run string) *change.Change {
	c := pod(change.OpSynced, name, uid, rv)
	c.Reason, c.Run = reason, run
	return c
}

// A repetition without a state has the last published one; where there is none, nothing is repeated.
func TestRepetitionWithoutBody(t *testing.T) {
	scenario(t, func(t *testing.T, f *fixture) {
		added := pod(change.OpAdded, "web", "a", 1)
		f.Publish(added)
		f.flush(t)
		bare := repetition(change.ReasonResync, "web", "a", 1, "r1")
		bare.Raw = nil
		f.Publish(bare)
		f.flush(t)
		equalHistory(t, f, "web", "added a/1", "synced a/1")
		if last := f.broker.last[podSubject("web")]; last.id() != "a/1/sync/r1" || !bytes.Equal(last.body, added.Raw) {
			t.Errorf("stored as %s: %s", last.id(), last.body)
		}
		f.broker.remove(podSubject("web"), 2)
		again := repetition(change.ReasonResync, "web", "a", 1, "r2")
		again.Raw = nil
		f.Publish(again)
		f.flush(t)
		equalHistory(t, f, "web")
		if n := f.metrics.count("suppressed no-state"); n != 1 {
			t.Errorf("counted %d repetitions without a state", n)
		}
		f.atRest(t)
	})
}

// What was removed from the stream is published again as a repair: all of an object, or its last message.
func TestRepair(t *testing.T) {
	scenario(t, func(t *testing.T, f *fixture) {
		for _, name := range []string{"whole", "purged", "cut"} {
			f.Publish(pod(change.OpAdded, name, name, 1))
			f.Publish(pod(change.OpModified, name, name, 2))
		}
		f.flush(t)
		f.broker.remove(podSubject("purged"), 2)
		f.broker.remove(podSubject("cut"), 1)
		for _, name := range []string{"whole", "purged", "cut"} {
			f.Publish(repetition(change.ReasonRepair, name, name, 2, "r1"))
		}
		f.flush(t)
		equalHistory(t, f, "whole", "added whole/1", "modified whole/2", "synced whole/2")
		equalHistory(t, f, "purged", "added purged/2")
		equalHistory(t, f, "cut", "added cut/1", "modified cut/2")
		f.atRest(t)
	})
}
