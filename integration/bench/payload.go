package main

import (
	"encoding/json"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/deltabridge/deltabridge/internal/informer"
)

// objects is how many distinct objects the events are about.
const objects = 1000

// payload is a kind of object that is measured.
type payload struct {
	name     string
	resource informer.Resource
	object   func(i int) any
}

var payloads = []payload{
	{"1 kB", informer.Resource{GVR: schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}, Kind: "ConfigMap", Namespaced: true}, configMap},
	{"8.5 kB", informer.Resource{GVR: schema.GroupVersionResource{Version: "v1", Resource: "pods"}, Kind: "Pod", Namespaced: true}, pod},
}

// json returns the object as an API server would write it, with a hole for its version.
func (p payload) json(i int) []byte {
	b, err := json.Marshal(p.object(i))
	if err != nil {
		panic(err) // the objects are ours
	}
	return b
}

func (p payload) frames() []frame {
	out := make([]frame, objects)
	for i := range out {
		out[i] = newFrame("MODIFIED", p.json(i))
	}
	return out
}

func meta(i int, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Name: fmt.Sprintf("%s-%04d", name, i), Namespace: "default",
		UID:             types.UID(fmt.Sprintf("3f6d0c1e-0000-4000-8000-%012d", i)),
		ResourceVersion: versionHole,
		Labels:          map[string]string{"app.kubernetes.io/name": name, "app.kubernetes.io/instance": fmt.Sprint(i)},
	}
}

func managed(entries, fields int) []metav1.ManagedFieldsEntry {
	var out []metav1.ManagedFieldsEntry
	for e := range entries {
		var b strings.Builder
		b.WriteString(`{"f:spec":{`)
		for f := range fields {
			if f > 0 {
				b.WriteByte(',')
			}
			fmt.Fprintf(&b, `"f:field%d":{".":{},"f:name":{},"f:value":{}}`, f)
		}
		b.WriteString(`}}`)
		out = append(out, metav1.ManagedFieldsEntry{
			Manager: fmt.Sprintf("manager-%d", e), Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1",
			FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(b.String()),
		})
	}
	return out
}

func configMap(i int) any {
	m := meta(i, "settings")
	m.ManagedFields = managed(1, 4)
	return &corev1.ConfigMap{
		TypeMeta:   metav1.TypeMeta{Kind: "ConfigMap", APIVersion: "v1"},
		ObjectMeta: m,
		Data:       map[string]string{"config.yaml": strings.Repeat("key: value # é\n", 30)},
	}
}

func pod(i int) any {
	m := meta(i, "web")
	m.ManagedFields = managed(4, 18)
	var containers []corev1.Container
	var statuses []corev1.ContainerStatus
	for c := range 3 {
		name := fmt.Sprintf("container-%d", c)
		var env []corev1.EnvVar
		for e := range 14 {
			env = append(env, corev1.EnvVar{Name: fmt.Sprintf("VARIABLE_%d", e), Value: fmt.Sprintf("value number %d", e)})
		}
		containers = append(containers, corev1.Container{
			Name: name, Image: "registry.example.com/team/" + name + ":1.2.3", Env: env,
			Args: []string{"--listen=:8080", "--log-level=info"},
			Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("128Mi")},
			},
			VolumeMounts: []corev1.VolumeMount{{Name: "config", MountPath: "/etc/config"}, {Name: "data", MountPath: "/data"}},
		})
		statuses = append(statuses, corev1.ContainerStatus{
			Name: name, Ready: true, Image: "registry.example.com/team/" + name + ":1.2.3",
			ImageID: "registry.example.com/team/" + name + "@sha256:" + strings.Repeat("0a", 32), ContainerID: "containerd://" + strings.Repeat("1b", 32),
		})
	}
	return &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"},
		ObjectMeta: m,
		Spec:       corev1.PodSpec{NodeName: "ip-10-0-0-1.ec2.internal", Containers: containers},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, PodIP: "10.1.2.3", ContainerStatuses: statuses,
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}, {Type: corev1.PodScheduled, Status: corev1.ConditionTrue}},
		},
	}
}
