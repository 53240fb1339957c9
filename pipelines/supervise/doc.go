// Package supervise runs a program so that nothing of it outlives us: not its orphans,
// not what made a session of its own, not even when we are killed.
//
// It does not know what the program is. [Start] runs this program again with the verb
// supervise ([Main]), which starts the command, reports on it and ends all of its
// descendants; [Process] is our side of that. What the command prints goes through a
// [Log], which takes secrets out and keeps within a limit.
package supervise
