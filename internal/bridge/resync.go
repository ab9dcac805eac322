package bridge

import "github.com/deltabridge/deltabridge/internal/change"

// A repetition is handed to the publisher only while less than this waits there. So changes go first, a resync needs no
// memory to speak of while the broker is away, and there is still enough under way to use the connection.
const (
	repeatMessages = 64
	repeatBytes    = 4 << 20
)

// repeat is where a state that is no change enters the line. It does not block.
func repeat(p Publisher) func(*change.Change) bool {
	return func(c *change.Change) bool {
		if messages, bytes := p.Pending(); messages >= repeatMessages || bytes >= repeatBytes {
			return false
		}
		p.Publish(c)
		return true
	}
}
