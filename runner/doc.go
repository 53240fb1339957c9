// Package runner measures a running engine.
//
// It does not know where the engine came from, how results are stored, what a
// metric is or how anything is shown. It writes down what happened and when; what
// is computed from that is package metric's. (One quotient is stored: the share of
// the cores that this program used, for lack of meaning of its parts.)
//
// [WaitReady] waits for a launch, [Measure] runs the steps of a plan. This comment
// is the description of the method, version [MethodVersion]; the constants are in
// method.go. A change of any rule or number below raises the version.
//
// # Readiness of a launch
//
// A launch is ready when /v1/models lists the model under the name that is sent and
// one short completion came back; /health is not asked, since it answers long before
// the model is loaded and long after the engine is dead. The first look is at once,
// the next ones after 20 ms, doubling up to 1 s, until Limits.StartNs (30 minutes if
// not stated). A 401, another model name, a refused completion and the end of the
// process are errors at once.
//
// # The flow of a trial
//
//  1. Idle: the server's gauges say that nothing runs and nothing waits, in two
//     readings in a row, asked for every 50 ms. After Limits.IdleNs (60 s if not
//     stated) of anything else the trial is not_ready and nothing is sent. A server
//     without metrics, or whose metrics fail three times in a row, is not known to
//     be idle; our own streams have ended, and that is all that can be said.
//  2. Prompts: see package workload. Where the server has no /tokenize, or what it
//     answers is no count that a tokenizer could give, lengths are estimated, which a
//     warning says with the reason; usage then tells the true length. A /tokenize that
//     refuses, or is slower than 60 s, makes the trial failed. Every prompt begins with a nonce made of run,
//     launch and context, and of the step and stream where it must be new: what an
//     earlier run, launch or cell left in a prefix cache is never used.
//  3. Scout and warm-up, below; then one connection for each stream is opened.
//  4. Launch: all streams are due at one instant. A stream that ends by itself is
//     followed at once by its successor with the same prompt. A stream that fails
//     ends the trial: it is failed, and the matrix goes on.
//  5. Readiness, then the window, each with a clock of its own.
//  6. Closing: all streams are cancelled and seen to end; then Idle again. A server
//     that is not idle again within the limit makes the trial failed (timeout).
//  7. Counting again, below, where the server's usage did not tell what came.
//
// Stamps are nanoseconds of the monotonic clock since the trial began.
//
// # Prefill
//
// A step sends Concurrency requests (normally one) for one token each, every one
// with a prompt that no cache holds. The first time that a launch sees a context,
// decode scouts included, an unscored request of the same shape goes before. The
// counter of prefix cache hits is read before and after: hits beyond the tokens
// that the chat template puts before every message make the trial not_ready
// ("prefix cache hits"). That status and no other, since what was to be measured
// did not take place, though nothing failed; like every not_ready it has no
// headline number.
//
// # Decode
//
// The scout sends each prompt of the step for one token, so that the prefix cache
// holds it (cells are "warm" on purpose), its true length is known, and it is known
// how long it takes. Streams share one prompt per context, or have one each; both
// are the same for all concurrencies of a context in a launch. A context of 0 is a
// short fixed request. One reading of /metrics is made between the scout and the
// launch, so that the growth of the cache's counters is that of the streams.
// Readiness, in which all streams decode together, is the warm-up of the same shape:
// nothing before the window counts.
//
// Readiness ends in one of these ways (readiness.go):
//
//   - ready: every stream has had a first token since the launch, nothing waits, and
//     both held for SettleNs without a break, with output in that time and at least
//     one reading of the gauges;
//   - saturated: for max(SettleNs, 1.5 × the scout's time) something waited in every
//     reading, output came, and no further stream had its first token. The server
//     runs all it can, so the window opens, and the trial will be queued. Without
//     metrics this cannot be told from slowness, and is never said;
//   - the limit passed: not_ready, or over_capacity (no_output) if not one token
//     came and the server runs nothing or lets requests wait.
//
// The window is exactly WindowNs long. /metrics is read every 0.5 s by a goroutine
// of its own, each reading with a deadline of 5 s; nothing in the window waits for
// it. Readings are samples of the trial, beside the client's own count of open and
// active streams.
//
// # Tokens
//
// Tokens come from the usage of the streams. Text of a stream is kept (up to 1 MiB a
// stream and 64 MiB a trial) only while its server has counted nothing. After a trial
// that went through, /tokenize is asked for the count of the text of each request whose
// usage does not tell what came: there was none, or its count did not keep up until the
// stream was cut. At most 4,096 requests, 4 at once, a minute in all; the text alone,
// without special tokens. What is still unknown then is said in a warning, and in the
// reason of a trial that is valid: it has no rate.
//
// Usage that cannot be right makes the trial failed (encoding): a prompt that is more
// than 10 % and 64 tokens from what /tokenize counted for it, or, where that did not
// count, no possible length of its bytes; and in a decode a count that goes back, that
// is above what was asked, that is zero at the end of a stream with output, that stands
// still for more than 64 output events and four times the longest pause before, or that
// is no whole number (where /tokenize cannot stand in).
//
// # Limits
//
// A limit that the plan states holds. Otherwise:
//
//   - scout, warm-up and prefill request: 60 s + 4 × the expected time, where that
//     is the time of the longest prompt so far, times four for each doubling beyond
//     its length (attention grows with the square); 20 ms a token while nothing was
//     measured;
//   - readiness: 60 s + 2 × streams × scout + 4 × max(SettleNs, 1.5 × scout): an
//     engine without a prefix cache reads every stream's prompt again, one after
//     another;
//   - stall, 60 s: no token from any request, once all streams had their first. The
//     trial is failed (stall) and so is the engine. It also ends a scout, warm-up or
//     calibration for which, so long, no output came while every reading of the gauges
//     said that nothing runs and nothing waits;
//   - where no token came at all, where a window ended with 2 s of silence or
//     without a token, and where a server is not idle again, one short request is
//     sent: if it is not answered within the stall limit, the engine hangs, whatever
//     /health says.
//
// # Status
//
// The function judge (status.go) is pure; its comment lists the rules in order.
// The thresholds:
//
//   - queued: something waited in more than 5 % of the window's readings; or the
//     server's count of preemptions grew between the first and the last of them, since
//     a request that is preempted is put back to wait; or fewer
//     than 95 % of the streams were decoding (the time between first output and end
//     of each request, within the window) and the server does not say that it ran at
//     least 95 % of them;
//   - underfilled: fewer than 95 % were decoding although it says so;
//   - client_limited: the 99th percentile of the lateness of a 5 ms ticker is above
//     50 ms; or this program used more than 0.9 of the cores it may use; or a request
//     was sent more than 250 ms after it was due, and 40 ns for each byte of the
//     wave's bodies, since a server that reads slowly delays that too; or more than
//     half of at least 16 output events of the window came in reads of 4 events or
//     more, held back by a proxy or by this program. It is asked before queued: stamps
//     that are not right make every other number wrong;
//   - loop: the end of one stream's text, as it came, is the same text at least 4
//     times over at least 4,096 bytes, with a period of at most 4,096 bytes. Only
//     where the plan asks for it.
//
// # Ends
//
// Options.Drain ends the current trial as interrupted, with what was measured, and
// [Measure] returns nil. Cancelling the context returns its cause at once and keeps
// nothing of the current trial. When the engine's process ends, a server refuses
// connections, or an engine hangs, the trial is failed, the remaining steps are
// skipped rows, and Measure returns an [*EngineError]. A 401 in the middle ends the
// run, since every further step would fail the same way.
package runner
