// Package simulator is the embedded engine: a real HTTP server on loopback that
// behaves like vLLM's OpenAI server, driven by a [Profile] instead of a model.
//
// It does not know how it is measured, and it shares no code with the client that
// measures it: what the two have in common is the protocol alone, so that the
// conformance suite in runner/enginetest says something about both.
//
// The flow of one request:
//
//  1. the handler counts the prompt's tokens and hashes its blocks (tokenizer.go);
//  2. the scheduler (scheduler.go) queues it, first come first served, and admits
//     it when a slot, the KV blocks of its prompt and the prefill are free; blocks
//     that the prefix cache holds cost neither prefill time nor memory;
//  3. when its prefill is done and the base latency has passed it has its first
//     token and joins the batch at the next decode step;
//  4. each step takes the profile's time between tokens for the number of running
//     requests and their mean prompt length, and gives every running request its
//     tokens; a request that cannot get a KV block is preempted, the youngest
//     first;
//  5. one goroutine (pacer.go) sleeps until the scheduler's next due time and
//     tells handlers how many tokens they may write. Due times are absolute: a
//     late wake-up makes one write late and shifts nothing after it.
//
// Simplifications, on purpose: prefill does not slow decoding down, and rows of
// the decode table are prompt lengths, not prompt plus output, because published
// tables, from which profiles are fitted, average over the output's growth.
package simulator
