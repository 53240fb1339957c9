package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"speedmatrix/experiments/plan"
)

// maxFiles bounds the files of a model.
const maxFiles = 100_000

// reModel is what a hub allows as a name: organisation/model, or model alone.
var reModel = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,95}(/[A-Za-z0-9][A-Za-z0-9_.-]{0,95})?$`)

// Model resolves a model's name and revision by the hub, or hashes the files of a
// folder. An empty revision is the hub's default branch.
func (p *Pinner) Model(ctx context.Context, id, revision string) (plan.Snapshot, error) {
	switch {
	case strings.HasPrefix(id, "/") || strings.HasPrefix(id, "."):
		if revision != "" {
			return plan.Snapshot{}, fmt.Errorf("%s is a folder: it has no revision %q", id, revision)
		}
		return p.folder(ctx, id)
	case !reModel.MatchString(id):
		return plan.Snapshot{}, fmt.Errorf("%.200q is no name of a hub (organisation/model) and no folder (which begins with / or ./)", id)
	}
	if revision == "" {
		revision = "main"
	}
	if err := checkRev(revision); err != nil {
		return plan.Snapshot{}, err
	}
	ctx, cancel := p.timeout(ctx)
	defer cancel()
	listing, err := p.ask(ctx, id, revision)
	if err != nil {
		return plan.Snapshot{}, err
	}
	s, err := listing.snapshot(id)
	if err != nil {
		return plan.Snapshot{}, fmt.Errorf("%s: the hub's listing of %s: %w", p.hub.Host, id, err)
	}
	if isHex(revision, 40) && s.Revision != revision {
		return plan.Snapshot{}, fmt.Errorf("%s: asked for %s of %s, the hub answers with %s", p.hub.Host, revision, id, s.Revision)
	}
	return s, nil
}

// listing is the hub's answer.
type listing struct {
	SHA      string `json:"sha"`
	Siblings []struct {
		Name   string `json:"rfilename"`
		Size   *int64 `json:"size"`
		BlobID string `json:"blobId"`
		LFS    *struct {
			SHA256 string `json:"sha256"`
			Size   *int64 `json:"size"`
		} `json:"lfs"`
	} `json:"siblings"`
}

func (p *Pinner) ask(ctx context.Context, id, revision string) (*listing, error) {
	address := p.hub.JoinPath("api", "models", id, "revision").String() + "/" + url.PathEscape(revision) + "?blobs=true"
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("User-Agent", userAgent)
	req.Header.Set("Accept", "application/json")
	if p.o.HubToken != "" {
		// Go's client drops it where another host is named by a redirect.
		req.Header.Set("Authorization", "Bearer "+p.o.HubToken)
	}
	resp, err := p.http.Do(req)
	if err != nil {
		if away, ok := unreachable(ctx, p.hub.Host, err); ok {
			return nil, away
		}
		return nil, fmt.Errorf("%s: %w", p.hub.Host, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, p.hubError(id, revision, resp)
	}
	var l listing
	if err := json.NewDecoder(resp.Body).Decode(&l); err != nil {
		if away, ok := unreachable(ctx, p.hub.Host, err); ok {
			return nil, away
		}
		return nil, fmt.Errorf("%s: the hub's listing of %s cannot be read: %w", p.hub.Host, id, err)
	}
	return &l, nil
}

func (p *Pinner) hubError(id, revision string, resp *http.Response) error {
	token := "give a token with --hub-token-env"
	if p.o.HubToken != "" {
		token = "the token has no right to it"
	}
	// A hub answers 401 for what does not exist, so that nobody learns what does; the
	// header says more.
	switch code := resp.Header.Get("X-Error-Code"); {
	case code == "RevisionNotFound":
		return fmt.Errorf("%s: %s has no revision %q, or no longer", p.hub.Host, id, revision)
	case code == "GatedRepo":
		return fmt.Errorf("%s: %s is gated: accept its terms on the hub (%s)", p.hub.Host, id, token)
	case code == "RepoNotFound", resp.StatusCode == http.StatusUnauthorized, resp.StatusCode == http.StatusForbidden, resp.StatusCode == http.StatusNotFound:
		return fmt.Errorf("%s answers %d: there is no model %s with a revision %q, or it is private (%s); a folder of files begins with / or ./", p.hub.Host, resp.StatusCode, id, revision, token)
	case resp.StatusCode == http.StatusTooManyRequests:
		return fmt.Errorf("%s takes no more requests for now: wait, or %s", p.hub.Host, token)
	}
	return fmt.Errorf("%s answers %d %s for %s", p.hub.Host, resp.StatusCode, http.StatusText(resp.StatusCode), id)
}

// snapshot checks the listing: every file with its size and one hash.
func (l *listing) snapshot(id string) (plan.Snapshot, error) {
	s := plan.Snapshot{ID: id, Revision: l.SHA}
	switch {
	case !isHex(l.SHA, 40):
		return s, fmt.Errorf("the revision %.80q is no commit of 40 hex digits", l.SHA)
	case len(l.Siblings) == 0:
		return s, errors.New("it has no files")
	case len(l.Siblings) > maxFiles:
		return s, fmt.Errorf("it has %d files, more than %d", len(l.Siblings), maxFiles)
	}
	for _, f := range l.Siblings {
		file := plan.File{Path: f.Name}
		size := f.Size
		switch {
		case f.LFS != nil:
			// The blob is only a pointer to the file.
			file.SHA256 = f.LFS.SHA256
			if f.LFS.Size != nil {
				size = f.LFS.Size
			}
			if !isHex(file.SHA256, 64) {
				return s, fmt.Errorf("%.200q has no SHA-256", f.Name)
			}
		case isHex(f.BlobID, 40):
			file.Git = f.BlobID
		default:
			return s, fmt.Errorf("%.200q has no hash", f.Name)
		}
		if size == nil || *size < 0 {
			return s, fmt.Errorf("%.200q has no size", f.Name)
		}
		file.Bytes = *size
		if err := checkPath(f.Name); err != nil {
			return s, err
		}
		if s.Bytes > math.MaxInt64-file.Bytes {
			return s, errors.New("the sizes of the files exceed all bounds")
		}
		s.Bytes += file.Bytes
		s.Files = append(s.Files, file)
	}
	return s, inOrder(s.Files)
}

// checkPath refuses what would lead out of the model's folder or fool a reader.
func checkPath(name string) error {
	if name == "" || len(name) > 1024 || !utf8.ValidString(name) || path.Clean(name) != name || path.IsAbs(name) ||
		name == ".." || strings.HasPrefix(name, "../") || strings.ContainsRune(name, '\\') ||
		strings.IndexFunc(name, func(r rune) bool { return !unicode.IsPrint(r) }) >= 0 {
		return fmt.Errorf("%.200q is no name of a file", name)
	}
	return nil
}

// inOrder sorts files by path, each of which may be there once.
func inOrder(files []plan.File) error {
	slices.SortFunc(files, func(a, b plan.File) int { return strings.Compare(a.Path, b.Path) })
	for i := 1; i < len(files); i++ {
		if files[i].Path == files[i-1].Path {
			return fmt.Errorf("%q is there twice", files[i].Path)
		}
	}
	return nil
}
