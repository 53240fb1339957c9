package container

import (
	"math"

	"golang.org/x/sys/unix"
)

// machine fills in what the kernel says of the machine and of this container.
func machine(fsys rooted, f *Facts) {
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		f.Kernel = clean(unix.ByteSliceToString(u.Release[:]) + " " + unix.ByteSliceToString(u.Machine[:]))
	}
	f.CPU = fsys.cpuModel()
	var set unix.CPUSet
	if unix.SchedGetaffinity(0, &set) == nil {
		f.Cores = set.Count()
	}
	var s unix.Sysinfo_t
	if unix.Sysinfo(&s) == nil {
		f.Memory.TotalBytes = product(uint64(s.Totalram), uint64(s.Unit))
	}
	f.Memory.LimitBytes, f.CPULimit = fsys.groupLimits()
	var shm unix.Statfs_t
	if unix.Statfs(fsys.real("/dev/shm"), &shm) == nil && shm.Type == unix.TMPFS_MAGIC {
		f.ShmBytes = product(shm.Blocks, uint64(shm.Bsize))
	}
	var d unix.Statfs_t
	if unix.Statfs(fsys.real("/"), &d) == nil {
		total, free := product(d.Blocks, uint64(d.Bsize)), product(d.Bavail, uint64(d.Bsize))
		if total != nil && free != nil {
			f.Disks = append(f.Disks, Disk{"/", *total, *free})
		}
	}
}

func product(a, b uint64) *int64 {
	if b != 0 && a > math.MaxInt64/b {
		return nil
	}
	return new(int64(a * b))
}
