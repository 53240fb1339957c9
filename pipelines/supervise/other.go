//go:build !linux

package supervise

// Main does nothing and fails: descendants are found through /proc.
func Main([]string) int { return 1 }
