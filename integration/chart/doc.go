// Package chart tests the Helm chart: what it renders, what it refuses, that an API server takes it, and that the rights
// that it grants are those that the bridge needs.
package chart
