package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"

	"golang.org/x/sync/errgroup"
	"k8s.io/klog/v2"

	"github.com/deltabridge/deltabridge/internal/config"
)

// runBridge runs the service until the context ends, and returns the exit code.
func runBridge(ctx context.Context, environ []string, stderr io.Writer) int {
	c, warnings, err := config.Load(environ)
	if err != nil {
		fmt.Fprintln(stderr, err)
		for _, w := range warnings {
			fmt.Fprintln(stderr, "warning:", w)
		}
		return exitConfig
	}
	log := newLogger(c, stderr)
	klog.SetSlogLogger(log.With("from", "client-go"))
	for _, w := range warnings {
		log.Warn("configuration", "variable", w.Variable, "warning", w.Text)
	}
	if c.Oversize == config.OversizeObjectStore {
		log.Info("bodies above the broker's limit are reduced to metadata; this version does not keep them in the Object Store", "BRIDGE_OVERSIZE", string(c.Oversize))
	}
	app, err := wire(c, log)
	if err != nil {
		fmt.Fprintln(stderr, err)
		return exitConfig
	}
	log.Info("starting", "version", version, "commit", commit, "http", app.server.Addr(), changed(c))

	// The server starts first and stops last, so that it covers the drain.
	serving, stopServing := context.WithCancel(context.WithoutCancel(ctx))
	defer stopServing()
	group, running := errgroup.WithContext(ctx)
	left := int64(0)
	group.Go(func() error {
		err := app.server.Serve(serving)
		if err == nil && ctx.Err() == nil {
			return errors.New("the HTTP server stopped by itself")
		}
		return err
	})
	group.Go(func() error {
		defer stopServing()
		left = app.bridge.Run(running)
		return nil
	})
	if app.control != nil {
		group.Go(func() error {
			app.control.Run(running)
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		log.Error("failed", "error", err)
		return exitFailed
	}
	if left > 0 {
		log.Warn("stopped with changes left, they are found again at the next start", "changes", left)
		return exitFailed // the contract's 0 is for a clean drain
	}
	log.Info("stopped, everything taken was published")
	return exitOK
}

// changed lists the settings that differ from their defaults, secrets masked.
func changed(c *config.Config) slog.Attr {
	var settings []any
	for _, s := range c.Redacted() {
		if !s.Default {
			settings = append(settings, slog.String(s.Name, s.Value))
		}
	}
	return slog.Group("config", settings...)
}

func newLogger(c *config.Config, w io.Writer) *slog.Logger {
	options := &slog.HandlerOptions{Level: c.LogLevel}
	if c.LogFormat == config.LogText {
		return slog.New(slog.NewTextHandler(w, options))
	}
	return slog.New(slog.NewJSONHandler(w, options))
}
