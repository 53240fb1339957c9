package store

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// takeLock keeps a second program out. The kernel gives the lock back when this
// program ends, however it ends.
func (p *Partial) takeLock() error {
	f, err := os.OpenFile(filepath.Join(p.dir, lockFile), os.O_CREATE|os.O_RDWR, 0o666)
	if err != nil {
		return err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return fmt.Errorf("%s: another speedmatrix is writing to it; wait for it or end it", p.dir)
		}
		return fmt.Errorf("lock %s: %w", p.dir, err)
	}
	p.lock = f
	return nil
}

func (p *Partial) unlock() error {
	if p.lock == nil {
		return nil
	}
	err := p.lock.Close()
	p.lock = nil
	return err
}
