// Package dagger carries out a plan in containers of a Dagger engine: it gets or builds
// the pinned image, starts the serve command in it, and measures from a second
// container beside it.
//
// It does not know how anything is measured, what a run looks like on disk, or what a
// name such as a tag means now: the plan it gets is locked. It is the only user of the
// Dagger SDK. No command goes through a shell, no query holds a secret.
//
// Flow of one launch:
//
//  1. a session: the CLI is started in a process group of its own, versions are compared
//     (session.go)
//  2. what an earlier session left in the run's volume is taken over (collect.go)
//  3. the image: by digest, from an archive, or built from the commit; what it holds is
//     inspected and held against the plan (image.go, build.go)
//  4. the weights: a volume of the model's revision is filled and checked, unless it says
//     that it is complete (weights.go)
//  5. the engine, as a service under our supervisor, with a launch id of its own
//     (serve.go)
//  6. one measuring step for the whole matrix, bound to the service; its events and its
//     trials come back in the log, and the volume keeps every trial (measure.go)
//  7. the service is stopped, then killed, and seen gone; the volume is copied out
//
// Step 3 is cached by its content. Steps 4 to 7 have the launch's id in their environment,
// so nothing that was measured is ever taken from a cache.
package dagger
