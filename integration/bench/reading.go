package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/deltabridge/deltabridge/internal/informer"
)

func client(url string, events int) *rest.Config {
	return &rest.Config{Host: url, QPS: 1000, Burst: 1000, UserAgent: fmt.Sprintf("bench/%d", events)}
}

// readOnly reads a watch's lines and does nothing with them.
func readOnly(ctx context.Context, url string, p payload, events int) (result, error) {
	return measure(events, func() error {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/api/v1/"+p.resource.GVR.Resource+"?watch=true", nil)
		if err != nil {
			return err
		}
		r.Header.Set("User-Agent", fmt.Sprintf("bench/%d", events))
		response, err := http.DefaultClient.Do(r)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		lines := bufio.NewReaderSize(response.Body, 64<<10)
		for range events {
			if _, err := lines.ReadSlice('\n'); err != nil {
				return err
			}
		}
		return nil
	})
}

// ourDecoder takes the events of a ListWatch's watch, which are ready for the Reflector.
func ourDecoder(ctx context.Context, url string, p payload, events int) (result, error) {
	lw, err := informer.NewListWatch(client(url, events), p.resource, "", noMetrics{}, slog.New(slog.NewTextHandler(io.Discard, nil)))
	if err != nil {
		return result{}, err
	}
	return measure(events, func() error {
		w, err := lw.WatchWithContext(ctx, metav1.ListOptions{ResourceVersion: "1"})
		if err != nil {
			return err
		}
		defer w.Stop()
		for range events {
			if _, ok := <-w.ResultChan(); !ok {
				return errors.New("the watch ended early")
			}
		}
		return nil
	})
}

// dynamicInformer is what one writes first: each event decoded, cached, and encoded again.
func dynamicInformer(ctx context.Context, url string, p payload, events int) (result, error) {
	c, err := dynamic.NewForConfig(client(url, events))
	if err != nil {
		return result{}, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	return measure(events, func() error {
		factory := dynamicinformer.NewDynamicSharedInformerFactory(c, 0)
		var handled atomic.Int64
		done := make(chan struct{})
		handle := func(o any) {
			if _, err := json.Marshal(o.(*unstructured.Unstructured).Object); err != nil {
				panic(err)
			}
			if handled.Add(1) == int64(events) {
				close(done)
			}
		}
		_, err := factory.ForResource(p.resource.GVR).Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: handle, UpdateFunc: func(_, o any) { handle(o) },
		})
		if err != nil {
			return err
		}
		factory.Start(ctx.Done())
		select {
		case <-done:
		case <-time.After(5 * time.Minute):
			return fmt.Errorf("only %d of %d events arrived", handled.Load(), events)
		}
		cancel()
		factory.Shutdown()
		return nil
	})
}

// noMetrics counts nothing.
type noMetrics struct{}

func (noMetrics) BadFrame(schema.GroupResource)                                    {}
func (noMetrics) Relist(schema.GroupResource, string)                              {}
func (noMetrics) Published(schema.GroupResource, string, time.Time, time.Duration) {}
func (noMetrics) Suppressed(schema.GroupResource, string)                          {}
func (noMetrics) Retried(string)                                                   {}
func (noMetrics) Oversize(string)                                                  {}
func (noMetrics) Fenced()                                                          {}
