// Package host carries out a plan on this machine: it starts the plan's serve
// command as processes of its own, from a virtual environment built of pinned
// wheels (source wheel) or from a program that exists (source host).
//
// It does not know how anything is measured, what vLLM's metrics mean, or how a run
// is stored. No command goes through a shell.
//
// Flow of one launch:
//
//  1. wheel: the virtual environment and the model are taken from the cache folder,
//     or made (venv.go, model.go)
//  2. the plan's argv gets the program's path, the loopback address and a free port
//     (command.go, port.go); the engine gets an allow-list of our environment and a
//     key that only we know (environ.go)
//  3. it is started under a supervisor, which is this program again (process.go,
//     supervise.go), so that nothing outlives us, not even kill -9
//  4. its log is kept, without secrets and within a limit (log.go)
//  5. runner.WaitReady, then runner.Measure; its exit is seen at once
//  6. TERM to all, KILL after the grace time; then it is checked that no process is
//     left, that the port is free, and that the GPU memory is free (gpu.go)
//
// An engine is started once: one that cannot stay up is an error with the last
// lines of its log, not a loop.
package host
