package checkpoint_test

import (
	"fmt"
	"testing"

	"github.com/deltabridge/deltabridge/internal/checkpoint"
)

// BenchmarkTracker begins and ends changes, of which so many are under way.
func BenchmarkTracker(b *testing.B) {
	for _, under := range []int{1, 2048} {
		b.Run(fmt.Sprint(under, " under way"), func(b *testing.B) {
			var t checkpoint.Tracker
			tickets := make([]checkpoint.Ticket, under)
			for i := range tickets {
				tickets[i] = t.Begin("1")
			}
			i := 0
			b.ReportAllocs()
			for b.Loop() {
				t.Done(tickets[i%under])
				tickets[i%under] = t.Begin("1")
				i++
			}
		})
	}
}
