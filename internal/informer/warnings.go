package informer

import (
	"context"
	"log/slog"
	"sync"

	"k8s.io/client-go/rest"
)

// maxWarnings bounds how many warnings of the API server are remembered.
const maxWarnings = 256

// apiWarnings logs what the API server warns of, a deprecated version say, once for each text: it comes with every answer.
type apiWarnings struct {
	log  *slog.Logger
	mu   sync.Mutex
	seen map[string]bool
}

var _ rest.WarningHandlerWithContext = (*apiWarnings)(nil)

// HandleWarningHeaderWithContext takes one warning of an answer. 299 is the code of those that the API server means for
// users.
func (w *apiWarnings) HandleWarningHeaderWithContext(_ context.Context, code int, _ string, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if code != 299 || text == "" || w.seen[text] || len(w.seen) == maxWarnings {
		return
	}
	w.seen[text] = true
	w.log.Warn("the API server warns", "warning", text)
}
