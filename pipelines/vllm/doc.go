// Package vllm reads what vLLM says about itself: /metrics, the start-up log, and
// version texts.
//
// It is pure. It starts nothing, asks nothing and knows no clock; it is given bytes
// and lines. A number that vLLM does not give, or gives as None, NaN or -1, is nil
// and never 0.
//
//   - [Parse] reads a whole body of /metrics, with the KV capacity; [Gauges] only
//     what changes, fast enough to be called twice a second beside a measurement.
//   - [LogFacts] is fed the log's lines, one by one, and keeps what the engine
//     settled on.
//   - [ParseVersion] reads a version, image tag or image; [Version.Compare] orders
//     them as PEP 440 does.
package vllm
