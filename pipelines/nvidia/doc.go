// Package nvidia reads what nvidia-smi says and judges it: can these GPUs be measured,
// and what would move the numbers.
//
// It starts no program and does not know where the text comes from, which engine runs or
// how a run is stored. All text is untrusted, and what nvidia-smi does not tell is nil,
// never 0: "N/A", "[Not Supported]", "ERR!" and "Requested functionality has been
// deprecated" are no numbers.
//
//   - [Parse] reads the report of "nvidia-smi -q -x", of drivers from 450 on.
//   - [Preflight] holds a report against an image and the GPUs that are wanted.
//   - [MemoryHeld] compares the reports before the start and after the end.
//   - [ParseSample] reads one line of the readings kept during a launch, and
//     [RecordSamples] cuts out those of one trial.
package nvidia
