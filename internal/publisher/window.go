package publisher

import "time"

const (
	// slowest and slower say what a rising acknowledgement time is: above slowest, and so many times the least of late.
	// What is below does no harm, whatever it was before.
	slowest = 250 * time.Millisecond
	slower  = 4
	// baseLife is how long the least acknowledgement time is held for true.
	baseLife = 30 * time.Second
)

// window is how much of a shard may be in flight: so many messages, and a like part of the bytes. It grows with what is
// stored, by one for each message after an outage, and by one for each window beyond half of where it was when the broker
// was overloaded; it is halved when that is so again, and closed to one while the broker takes nothing.
type window struct {
	messages    int // in flight at most
	maxMessages int
	maxBytes    int64

	threshold int // above it the window grows slowly
	stored    int // since it has grown last, above the threshold
	cut       time.Time

	smooth     time.Duration // acknowledgement time, smoothed
	base, next time.Duration // the least of late, and since the last change of base; zero for none
	baseSince  time.Time
}

func newWindow(maxMessages int, maxBytes int64) *window {
	return &window{messages: maxMessages, maxMessages: maxMessages, maxBytes: maxBytes, threshold: maxMessages}
}

// bytes is how many bytes may be in flight. One message may be more, by itself.
func (w *window) bytes() int64 { return w.maxBytes * int64(w.messages) / int64(w.maxMessages) }

// grow notes that a message was stored.
func (w *window) grow() {
	switch {
	case w.messages >= w.maxMessages:
		return
	case w.messages < w.threshold:
		w.messages++
		return
	}
	if w.stored++; w.stored >= w.messages {
		w.messages++
		w.stored = 0
	}
}

// close leaves room for one message, which finds out whether the broker takes any again.
func (w *window) close() { w.messages, w.stored = 1, 0 }

// congested notes that the broker had too much at once, as the outcome of a message shows that was sent at a time. What
// was sent before the last cut says nothing new.
func (w *window) congested(sent, now time.Time) {
	if sent.Before(w.cut) {
		return
	}
	w.cut = now
	w.messages = max(w.messages/2, 1)
	w.threshold, w.stored = w.messages, 0
}

// answered notes when a message was sent and acknowledged. An acknowledgement time that rises shows that messages queue
// up at the broker; there they are lost when its leader steps down, and hold up what is urgent.
func (w *window) answered(sent, now time.Time) {
	took := max(now.Sub(sent), 1)
	if w.smooth == 0 {
		w.smooth = took
	}
	w.smooth += (took - w.smooth) / 16
	if now.Sub(w.baseSince) > baseLife {
		w.base, w.next, w.baseSince = w.next, 0, now
	}
	if w.base == 0 || took < w.base {
		w.base = took
	}
	if w.next == 0 || took < w.next {
		w.next = took
	}
	if w.smooth > slowest && w.smooth > slower*w.base {
		w.congested(sent, now)
	}
}
