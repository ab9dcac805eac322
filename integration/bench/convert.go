package main

import "k8s.io/apimachinery/pkg/runtime"

func toUnstructured(o any) (map[string]any, error) {
	return runtime.DefaultUnstructuredConverter.ToUnstructured(o)
}
