// Package openai carries out one streaming completion over the OpenAI HTTP API
// and writes down when each piece of it arrived.
//
// It does not know what is sent when (package load), what the prompts are (package
// workload), or what is made of the events (package metric). It never retries, and
// a failed request is data like any other: [Client.Stream] returns no error but
// fills a [record.Request].
//
// The flow of a stream:
//
//  1. The body, made once by [ChatBody], is written; SentNs is
//     when the last of it was handed to the socket (a prompt of a megabyte may still
//     be on its way then).
//  2. Each read of the socket is stamped by the connection itself, before anything
//     else happens to the bytes; all events of one read share that stamp.
//  3. Package sse cuts the bytes into events, parseChunk reads those, by hand where
//     their shape is the usual one and with encoding/json otherwise.
//  4. A stream decides what an event was: output, a count of tokens, an error, the
//     end. Output and counts are kept as [record.Chunk], text is not.
//  5. The request ends at [DONE], whatever the server does with the connection.
package openai
