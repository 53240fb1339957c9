//go:build linux

package host

import (
	"bufio"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// choosePort returns a port of the loopback address that nobody listens on. It
// lies below the range from which the kernel takes the ports of outgoing
// connections, so none of those can take it while the engine is loading.
func choosePort() (int, error) {
	var last error
	for range 50 {
		port := 20000 + rand.IntN(10000)
		if last = portFree(port); last == nil {
			return port, nil
		}
	}
	return 0, fmt.Errorf("no free port found between 20000 and 30000: %w", last)
}

// portFree returns an error that names who holds the port.
func portFree(port int) error {
	l, err := net.Listen("tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err == nil {
		return l.Close()
	}
	if !errors.Is(err, syscall.EADDRINUSE) {
		return err
	}
	return fmt.Errorf("port %d is taken by %s", port, portHolder(port))
}

// portHolder names the process that listens on a port, as far as we may see it.
func portHolder(port int) string {
	inodes := map[string]bool{}
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		listening(table, port, inodes)
	}
	links, _ := filepath.Glob("/proc/[0-9]*/fd/*") // the pattern is well formed
	for _, link := range links {
		target, err := os.Readlink(link)
		if err != nil {
			continue
		}
		inode, ok := strings.CutPrefix(target, "socket:[")
		if !ok || !inodes[strings.TrimSuffix(inode, "]")] {
			continue
		}
		pid := strings.Split(link, "/")[2]
		name, err := os.ReadFile("/proc/" + pid + "/comm")
		if err != nil {
			continue
		}
		return fmt.Sprintf("%s (process %s)", strings.TrimSpace(string(name)), pid)
	}
	return "another process, which this user may not look at"
}

// listening adds the socket inodes of a /proc/net/tcp table that listen on a port.
func listening(table string, port int, inodes map[string]bool) {
	f, err := os.Open(table)
	if err != nil {
		return
	}
	defer f.Close()
	suffix := fmt.Sprintf(":%04X", port)
	for lines := bufio.NewScanner(f); lines.Scan(); {
		// sl local_address rem_address st … inode, the tenth column; 0A is LISTEN.
		c := strings.Fields(lines.Text())
		if len(c) > 9 && c[3] == "0A" && strings.HasSuffix(c[1], suffix) {
			inodes[c[9]] = true
		}
	}
}
