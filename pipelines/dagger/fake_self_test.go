package dagger

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	sdk "dagger.io/dagger"
)

// These are tests of the fake session itself: what the others rely on.

const fakeImage = "registry.example/engine@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

func TestFakeExec(t *testing.T) {
	f := newFake(t)
	var log bytes.Buffer
	f.onExec(func(_ context.Context, c *execCall) execResult {
		if c.Env["GREETING"] != "hello" || c.Secrets["KEY"] != "env://KEY" || c.Mounts["/tmp"].Size != 4096 || c.Platform != "linux/arm64" || c.GPUs == nil {
			t.Errorf("call: %+v", c)
		}
		n := "0"
		if b, err := os.ReadFile(c.Path("/data/count")); err == nil {
			n = string(b)
		}
		if err := os.WriteFile(c.Path("/data/count"), []byte(n+"+"), 0o644); err != nil {
			t.Error(err)
		}
		in, err := os.ReadFile(c.Path("/in.json"))
		if err != nil {
			t.Error(err)
		}
		if err := os.MkdirAll(c.Path("/out"), 0o755); err != nil {
			t.Error(err)
		}
		if err := os.WriteFile(c.Path("/out/copy"), in, 0o644); err != nil {
			t.Error(err)
		}
		return execResult{Code: 7, Stdout: "said " + n + "\n"}
	})
	self := filepath.Join(t.TempDir(), "self")
	if err := os.WriteFile(self, []byte("program"), 0o755); err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	chain := func(c *sdk.Client, run string) *sdk.Container {
		return c.Container(sdk.ContainerOpts{Platform: "linux/arm64"}).From(fakeImage).
			WithFile("/self", c.Host().File(self), sdk.ContainerWithFileOpts{Permissions: 0o755}).
			WithNewFile("/in.json", `{"b":1,"a":2}`).
			WithMountedCache("/data", c.CacheVolume("vol"), sdk.ContainerWithMountedCacheOpts{Sharing: sdk.CacheSharingModeShared}).
			WithMountedTemp("/tmp", sdk.ContainerWithMountedTempOpts{Size: 4096}).
			WithEnvVariable("GREETING", "hello").
			WithEnvVariable("RUN", run).
			WithSecretVariable("KEY", c.Secret("env://KEY")).
			ExperimentalWithAllGPUs().
			WithExec([]string{"/self", "measure"}, sdk.ContainerWithExecOpts{Expect: sdk.ReturnTypeAny})
	}
	for i, session := range []string{"first", "second"} {
		c, err := f.connect(ctx, &log)
		if err != nil {
			t.Fatal(err)
		}
		step := chain(c, "r")
		code, err := step.ExitCode(ctx)
		if err != nil || code != 7 {
			t.Fatal(code, err)
		}
		// The second session takes it from the cache.
		if out, err := step.Stdout(ctx); err != nil || out != "said 0\n" {
			t.Errorf("%s session: %q, %v", session, out, err)
		}
		to := filepath.Join(t.TempDir(), "here")
		if _, err := step.Directory("/out").Export(ctx, to); err != nil {
			t.Fatal(err)
		}
		if b, err := os.ReadFile(filepath.Join(to, "copy")); err != nil || string(b) != `{"b":1,"a":2}` {
			t.Errorf("exported %q, %v", b, err)
		}
		if _, err := step.File("/in.json").Export(ctx, filepath.Join(to, "in")); err != nil {
			t.Error(err)
		}
		if _, err := step.Directory("/data").Export(ctx, to); err == nil {
			t.Error("a volume was exported, which engines refuse")
		}
		if _, err := step.File("/none").Export(ctx, to); err == nil {
			t.Error("a file was exported that is not there")
		}
		if i == 1 { // another environment is another command; the volume is the same
			if out, err := chain(c, "other").Stdout(ctx); err != nil || out != "said 0+\n" {
				t.Errorf("%q, %v", out, err)
			}
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if n := f.runs(execOf("measure")); n != 2 {
		t.Errorf("run %d times", n)
	}
	if b, err := os.ReadFile(filepath.Join(f.volume("vol"), "count")); err != nil || string(b) != "0++" {
		t.Errorf("volume: %q, %v", b, err)
	}
	if !strings.Contains(log.String(), "| said 0\n") {
		t.Errorf("log: %q", log.String())
	}
	envs := f.env(execOf("measure"))
	if len(envs) != 2 || envs[0]["RUN"] != "r" || envs[1]["RUN"] != "other" || envs[0]["KEY"] != "env://KEY" {
		t.Errorf("env: %v", envs)
	}
	f.fromByDigestOnly(t)
	f.noShell(t)
	f.noHostDirectory(t)
	f.noSecret(t, "not-in-it")
}

func TestFakeQuestions(t *testing.T) {
	f := newFake(t)
	c := f.client(t)
	ctx := t.Context()
	if v, err := c.Version(ctx); err != nil || v != fakeVersion {
		t.Error(v, err)
	}
	f.answer(step("from"), imageConfig{Env: map[string]string{"HOME": "/home/u", "PATH": "/bin"}, Entrypoint: []string{"python3"}, User: "u", Platform: "linux/arm64"})
	image := c.Container().From(fakeImage).WithEnvVariable("PATH", "/venv:${PATH}", sdk.ContainerWithEnvVariableOpts{Expand: true})
	env, err := image.EnvVariables(ctx)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, v := range env {
		name, err := v.Name(ctx)
		if err != nil {
			t.Fatal(err)
		}
		value, err := v.Value(ctx)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, name+"="+value)
	}
	if !slices.Equal(got, []string{"HOME=/home/u", "PATH=/venv:/bin"}) {
		t.Error(got)
	}
	if e, err := image.Entrypoint(ctx); err != nil || !slices.Equal(e, []string{"python3"}) {
		t.Error(e, err)
	}
	if p, err := image.Platform(ctx); err != nil || p != "linux/arm64" {
		t.Error(p, err)
	}
	if n, err := c.Engine().LocalCache().MinFreeSpace(ctx); err != nil || n == 0 {
		t.Error(n, err)
	}
	f.answer(asks("minFreeSpace"), 5)
	if n, err := c.Engine().LocalCache().MinFreeSpace(ctx); err != nil || n != 5 {
		t.Error(n, err)
	}
	if ref, err := image.Publish(ctx, "registry.example:5000/mine:tag"); err != nil || !strings.HasPrefix(ref, "registry.example:5000/mine@sha256:") {
		t.Error(ref, err)
	}
	to := filepath.Join(t.TempDir(), "image.tar")
	if _, err := image.AsTarball().Export(ctx, to); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(to); err != nil {
		t.Error(err)
	}
	// Objects are the same by content, over sessions.
	a, err := c.CacheVolume("x").ID(ctx)
	if err != nil {
		t.Fatal(err)
	}
	b, err := f.client(t).CacheVolume("x").ID(ctx)
	if err != nil || a != b {
		t.Error(a, b, err)
	}
}

func TestFakeFaults(t *testing.T) {
	ctx := t.Context()
	f := newFake(t)
	c := f.client(t)
	build := c.Container().From(fakeImage).WithExec([]string{"make"})
	f.fail(every(asks("stdout"), through(execOf("make"))), execFailed([]string{"make"}, 2, "out", "no rule"))
	_, err := build.Stdout(ctx)
	var e *sdk.ExecError
	if !errors.As(err, &e) || e.ExitCode != 2 || e.Stderr != "no rule" || !slices.Equal(e.Cmd, []string{"make"}) {
		t.Errorf("%#v", err)
	}
	if _, err := build.Stdout(ctx); err != nil {
		t.Error("a fault came twice:", err)
	}

	f.onExec(func(context.Context, *execCall) execResult { return execResult{Code: 3, Stderr: "why"} })
	if _, err := c.Container().WithExec([]string{"fails"}).Sync(ctx); !errors.As(err, &e) || e.ExitCode != 3 || e.Stderr != "why" {
		t.Errorf("%#v", err)
	}

	f.failAlways(asks("platform"), engineError("manifest unknown: %s", "gone"))
	for range 2 {
		if _, err := build.Platform(ctx); err == nil || !strings.Contains(err.Error(), "manifest unknown: gone") {
			t.Error(err)
		}
	}

	f.fail(asks("user"), lost())
	for range 2 {
		if _, err := build.User(ctx); err == nil || !strings.Contains(err.Error(), "connection refused") {
			t.Error(err)
		}
	}
	if _, err := f.client(t).Version(ctx); err != nil {
		t.Error("a new session is not lost:", err)
	}
}

func TestFakeNoAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.fail(asks("version"), never())
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if _, err := f.client(t).Version(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
	})
}

func TestFakeService(t *testing.T) {
	engine := func(c *sdk.Client, launch string) *sdk.Service {
		return c.Container().From(fakeImage).WithEnvVariable("LAUNCH", launch).
			WithExposedPort(8000, sdk.ContainerWithExposedPortOpts{ExperimentalSkipHealthcheck: true}).
			AsService(sdk.ContainerAsServiceOpts{Args: []string{"engine", "serve"}})
	}
	client := func(c *sdk.Client, s *sdk.Service) *sdk.Container {
		return c.Container().WithServiceBinding("engine", s).WithExec([]string{"client"})
	}

	t.Run("bound, stopped, started again", func(t *testing.T) {
		f, ctx := newFake(t), t.Context()
		f.onService(func(ctx context.Context, c *serviceCall) int {
			c.Serves("127.0.0.1:1234")
			return c.Wait(ctx)
		})
		f.onExec(func(ctx context.Context, c *execCall) execResult {
			address, err := c.Address(ctx, "engine")
			return execResult{Stdout: address, Err: err}
		})
		c := f.client(t)
		s := engine(c, "1")
		started, err := s.Start(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if out, err := client(c, started).Stdout(ctx); err != nil || out != "127.0.0.1:1234" {
			t.Error(out, err)
		}
		if _, err := started.Stop(ctx); err != nil {
			t.Error(err)
		}
		if _, err := engine(c, "1").Start(ctx); err != nil {
			t.Error(err)
		}
		if _, err := engine(c, "2").Start(ctx); err != nil {
			t.Error(err)
		}
		if all := f.started(); len(all) != 3 || all[0].n != all[1].n || all[2].Env["LAUNCH"] != "2" {
			t.Error(all)
		}
		if stopped, killed := f.stops(serviceOf("serve")); stopped != 1 || killed != 0 {
			t.Error(stopped, killed)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		for _, s := range f.started() {
			<-s.exited
		}
	})

	t.Run("takes no notice of stop", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f := newFake(t)
			f.onService(ignoresStop)
			s, err := engine(f.client(t), "1").Start(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if _, err := s.Stop(ctx); !errors.Is(err, context.DeadlineExceeded) {
				t.Error(err)
			}
			if _, err := s.Stop(t.Context(), sdk.ServiceStopOpts{Kill: true}); err != nil {
				t.Error(err)
			}
			if stopped, killed := f.stops(serviceOf("engine")); stopped != 1 || killed != 1 {
				t.Error(stopped, killed)
			}
		})
	})

	t.Run("ends under a command", func(t *testing.T) {
		f, ctx := newFake(t), t.Context()
		f.onService(exits(3))
		f.onExec(func(ctx context.Context, _ *execCall) execResult {
			<-ctx.Done()
			return execResult{}
		})
		c := f.client(t)
		s, err := engine(c, "1").Start(ctx)
		if err != nil {
			t.Fatal("a start without a health check does not see an end:", err)
		}
		if _, err := client(c, s).Sync(ctx); err == nil || !serviceExited.MatchString(err.Error()) || !strings.Contains(err.Error(), "exit code: 3") {
			t.Error(err)
		}
	})

	t.Run("of the host", func(t *testing.T) {
		f, ctx := newFake(t), t.Context()
		f.onExec(func(ctx context.Context, c *execCall) execResult {
			address, err := c.Address(ctx, "engine")
			return execResult{Stdout: address, Err: err}
		})
		c := f.client(t)
		s := c.Host().Service([]sdk.PortForward{{Backend: 4321, Frontend: 80}}, sdk.HostServiceOpts{Host: "127.0.0.1"})
		if out, err := client(c, s).Stdout(ctx); err != nil || out != "127.0.0.1:4321" {
			t.Error(out, err)
		}
	})

	t.Run("session lost under a command", func(t *testing.T) {
		f, ctx := newFake(t), t.Context()
		f.onExec(func(ctx context.Context, _ *execCall) execResult {
			f.lose()
			<-ctx.Done()
			return execResult{}
		})
		c := f.client(t)
		if _, err := client(c, engine(c, "1")).Sync(ctx); err == nil || !strings.Contains(err.Error(), "connection refused") {
			t.Error(err)
		}
		for _, s := range f.started() {
			<-s.exited
		}
	})
}

func TestFakeGolden(t *testing.T) {
	f := newFake(t)
	c := f.client(t)
	ctx := t.Context()
	run := c.CacheVolume("speedmatrix-run-r7")
	image := c.Container(sdk.ContainerOpts{Platform: "linux/amd64"}).From(fakeImage)
	if _, err := image.EnvVariables(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := image.Entrypoint(ctx); err != nil {
		t.Fatal(err)
	}
	s := image.WithMountedCache("/run", run).WithSecretVariable("KEY", c.Secret("env://KEY")).
		AsService(sdk.ContainerAsServiceOpts{Args: strings.Fields("/speedmatrix supervise --launch-dir /run/launch-1 -- vllm serve some/model --max-model-len 4096 --gpu-memory-utilization 0.9")})
	s, err := s.Start(ctx)
	if err != nil {
		t.Fatal(err)
	}
	step := c.Container().
		WithNewFile("/job.json", `{"run_id":"r7","plan":{}}`).
		WithNewFile("/profile.yaml", "first: line\nsecond: line\n").
		WithServiceBinding("engine", s).
		WithExec([]string{"/speedmatrix", "measure"}, sdk.ContainerWithExecOpts{Expect: sdk.ReturnTypeAny})
	if _, err := step.ExitCode(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := step.File("/job.json").Export(ctx, filepath.Join(t.TempDir(), "job.json")); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Stop(ctx, sdk.ServiceStopOpts{Kill: true}); err != nil {
		t.Fatal(err)
	}
	f.replace("r7", "<run>", strings.TrimPrefix(fakeImage, "registry.example/engine@sha256:"), "<digest>")
	f.replacePattern(`export\(path: ".*/`, `export(path: "<tmp>/`)
	f.golden(t, "fake")
}

func TestFakeFinds(t *testing.T) {
	const secret = `hush "42"/+`
	hidden := func(text string) *fake {
		f := newFake(t)
		if _, err := f.client(t).Container().WithEnvVariable("X", text).ID(t.Context()); err != nil {
			t.Fatal(err)
		}
		return f
	}
	for _, text := range []string{secret, "a " + secret, `"` + `hush \"42\"/+` + `"`,
		base64.StdEncoding.EncodeToString([]byte(secret)), base64.URLEncoding.EncodeToString([]byte("k:" + secret)), base64.StdEncoding.EncodeToString([]byte("u:" + secret + "."))} {
		f := hidden(text)
		if !slices.ContainsFunc(writings(secret), func(w string) bool {
			return slices.ContainsFunc(f.requests, func(r request) bool { return strings.Contains(r.text, w) })
		}) {
			t.Errorf("%q hides the secret", text)
		}
	}
	hidden("nothing").noSecret(t, secret)
}
