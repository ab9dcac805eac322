package harness

import (
	"context"
	"errors"
	"os"
)

// Backup stops the control plane, copies what etcd has stored, and starts it again.
func (c *ControlPlane) Backup(ctx context.Context) error {
	return c.whileStopped(ctx, func() error {
		if err := os.RemoveAll(c.path("backup")); err != nil {
			return err
		}
		return os.CopyFS(c.path("backup"), os.DirFS(c.path("etcd")))
	})
}

// Restore stops the control plane and starts it again with what [ControlPlane.Backup] copied: everything since has never
// been, and versions are given out a second time.
func (c *ControlPlane) Restore(ctx context.Context) error {
	return c.whileStopped(ctx, func() error {
		if err := os.RemoveAll(c.path("etcd")); err != nil {
			return err
		}
		if err := os.CopyFS(c.path("etcd"), os.DirFS(c.path("backup"))); err != nil {
			return err
		}
		return os.Chmod(c.path("etcd"), 0o700) // etcd refuses a directory that others may read
	})
}

// whileStopped runs f while neither etcd nor the API server runs.
func (c *ControlPlane) whileStopped(ctx context.Context, f func() error) error {
	stopped := errors.Join(c.StopAPIServer(), c.etcd.Stop(stopTimeout))
	if err := errors.Join(stopped, f()); err != nil {
		return err
	}
	if err := c.startEtcd(ctx); err != nil {
		return err
	}
	return c.StartAPIServer(ctx)
}
