// Package registry says what names mean: the tag of a container image, the branch
// or tag of a git repository, the revision of a model.
//
// It does not know what an experiment or a plan is for, keeps nothing, and never
// guesses: a name that has no single meaning is an error that names the ways on. It
// runs no container and downloads no image and no weights.
//
//   - Images (image.go): the registry's manifest, and of a list the one manifest for
//     the asked platform, whose config must agree.
//   - Repositories (git.go): git's smart HTTP protocol, only the listing of refs; for
//     a folder of this machine the git program. Annotated tags are peeled.
//   - Models (hub.go, folder.go): the listing of a hub with each file's size and
//     hash, or a folder whose files are hashed here.
//
// All answers are untrusted: every body is bounded, every field is checked before it
// gets into a plan. Credentials are given by the caller, go nowhere but to the server
// that they are for, and stand in no error.
package registry
