package informer

import (
	"fmt"
	"log/slog"
	"math"

	"k8s.io/client-go/rest"
)

// NewListWatch returns a ListWatch of one resource by itself, without a Manager and an informer around it: what the
// benchmarks measure as our decoder. An empty namespace is the whole cluster.
func NewListWatch(config *rest.Config, resource Resource, namespace string, metrics Metrics, log *slog.Logger) (*ListWatch, error) {
	config = rest.CopyConfig(config)
	if err := rawConfig(config); err != nil {
		return nil, err
	}
	client, err := rest.UnversionedRESTClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("make the API client: %w", err)
	}
	return &ListWatch{
		client: client, resource: resource, namespace: namespace, metrics: metrics, log: log,
		report: func(string, error) {}, deadline: progressDeadline, rewound: func(string, string) bool { return false },
		intake: newIntake(NewGate(math.MaxInt64)),
	}, nil
}
