//go:build linux

package host

func fakeServe(argv []string) int { return 0 }
