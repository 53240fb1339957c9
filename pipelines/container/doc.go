// Package container is the part of this program that runs inside containers, and the
// files by which it speaks with the part outside.
//
// It does not know which container engine there is, how an image is made, or how a run
// is stored. The same static binary is copied into two containers, which share one
// volume at [RunDir]:
//
//   - beside the engine, [Supervise] starts the serve command, keeps its log and says in
//     a file how it is ([EngineState]). It stays when the engine ended, until it is told
//     to stop: the other side must be able to read why.
//   - bound to the engine, [Measure] waits until it answers, carries out the plan, and
//     writes each trial beside and renames it. What it tells people, and each trial once
//     more in pieces, goes to standard output as one [Event] a line: a volume dies with
//     its container engine.
//
// Afterwards, or when a session was lost, [Collect] copies the volume to where it can be
// exported, and [Open] reads the copy outside. [Inspect] says what an image holds and
// what a container offers.
//
// Layout below RunDir:
//
//	launch-<n>/engine.json     state of the engine's process, by Supervise
//	launch-<n>/engine.log      its log, without secrets
//	launch-<n>/launch.json     what was found out about the engine, by Measure
//	launch-<n>/end.json        how the measuring ended; absent while it goes on
//	launch-<n>/gpu.csv         what nvidia-smi said once a second, where there is one
//	trials/<step>.json.gz      one trial; with .bad behind it: one that could not be read
//	drain                      its presence asks Measure to end early
package container
