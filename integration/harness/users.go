package harness

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// User returns the path of a kubeconfig for a user with no rights but those of everyone (discovery among them).
// [ControlPlane.Grant] gives it more.
func (c *ControlPlane) User(t testing.TB, name string) string {
	t.Helper()
	config, err := c.clientConfig(name)
	if err != nil {
		t.Fatalf("make user %s: %v", name, err)
	}
	path := t.TempDir() + "/" + name + ".kubeconfig"
	if err := writeKubeconfig(path, config); err != nil {
		t.Fatalf("make user %s: %v", name, err)
	}
	return path
}

// Grant gives a user rights in the whole cluster, or in one namespace where that is not empty.
func (c *ControlPlane) Grant(ctx context.Context, user, namespace string, rules ...rbacv1.PolicyRule) error {
	hash := sha256.Sum256(fmt.Appendf(nil, "%s %s %v", user, namespace, rules))
	meta := metav1.ObjectMeta{Name: "test-" + hex.EncodeToString(hash[:8]), Namespace: namespace}
	subjects := []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: user}}
	if namespace == "" {
		return c.createRBAC(ctx,
			&rbacv1.ClusterRole{TypeMeta: rbacType("ClusterRole"), ObjectMeta: meta, Rules: rules},
			&rbacv1.ClusterRoleBinding{
				TypeMeta: rbacType("ClusterRoleBinding"), ObjectMeta: meta, Subjects: subjects,
				RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: meta.Name},
			})
	}
	return c.createRBAC(ctx,
		&rbacv1.Role{TypeMeta: rbacType("Role"), ObjectMeta: meta, Rules: rules},
		&rbacv1.RoleBinding{
			TypeMeta: rbacType("RoleBinding"), ObjectMeta: meta, Subjects: subjects,
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: meta.Name},
		})
}

func rbacType(kind string) metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: kind}
}

var rbacResources = map[string]string{
	"ClusterRole": "clusterroles", "ClusterRoleBinding": "clusterrolebindings",
	"Role": "roles", "RoleBinding": "rolebindings",
}

func (c *ControlPlane) createRBAC(ctx context.Context, objects ...runtime.Object) error {
	for _, object := range objects {
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
		if err != nil {
			return fmt.Errorf("convert a rule: %w", err)
		}
		u := &unstructured.Unstructured{Object: content}
		resource := schema.GroupVersionResource{
			Group: rbacv1.GroupName, Version: "v1", Resource: rbacResources[u.GetKind()],
		}
		_, err = c.Dynamic().Resource(resource).Namespace(u.GetNamespace()).Create(ctx, u, metav1.CreateOptions{})
		if err != nil {
			return fmt.Errorf("create %s %s: %w", u.GetKind(), u.GetName(), err)
		}
	}
	return nil
}
