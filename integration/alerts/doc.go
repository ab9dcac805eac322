// Package alerts tests the alert rules and the dashboard of the chart: each rule with series on which it fires and with
// series on which it does not, and every metric that is named with the code.
package alerts
