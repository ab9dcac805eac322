package chaos

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/deltabridge/deltabridge/integration/naive"
)

// RunControl is the program of the control: the naive publisher, with the settings of a bridge in its environment, until
// SIGTERM.
func RunControl() error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		return fmt.Errorf("read the kubeconfig: %w", err)
	}
	config.QPS = -1
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("make a client: %w", err)
	}
	conn, err := nats.Connect(os.Getenv("NATS_URL"), nats.MaxReconnects(-1), nats.RetryOnFailedConnect(true))
	if err != nil {
		return fmt.Errorf("connect to NATS: %w", err)
	}
	defer conn.Close()
	js, err := jetstream.New(conn)
	if err != nil {
		return fmt.Errorf("make a JetStream client: %w", err)
	}
	options := naive.Options{
		Client: client, JS: js,
		Stream: os.Getenv("BRIDGE_STREAM"), Prefix: os.Getenv("BRIDGE_SUBJECT_PREFIX"), Cluster: os.Getenv("BRIDGE_CLUSTER"),
	}
	for _, r := range resources {
		options.Resources = append(options.Resources, r.GroupVersionResource)
	}
	replicas, err := strconv.Atoi(os.Getenv("BRIDGE_STREAM_REPLICAS"))
	if err != nil {
		return fmt.Errorf("BRIDGE_STREAM_REPLICAS: %w", err)
	}
	for ctx.Err() == nil {
		config := naive.StreamConfig(options.Stream, options.Prefix, options.Cluster, replicas)
		if _, err = js.CreateOrUpdateStream(ctx, config); err == nil {
			break
		}
		time.Sleep(200 * time.Millisecond)
	}
	return naive.New(options).Run(ctx, 5*time.Second)
}
