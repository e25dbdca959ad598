/*
 * Fake of pyxis, the SPANK plugin that gives srun its --container-* flags.
 *
 * It knows pyxis' flags, puts what was asked into the task's environment as FAKE_CONTAINER_*, and
 * makes the mounts and the working directory real, in a mount namespace of the task's own. There
 * is no image: the task goes on to see the node's files. An image whose name begins with
 * "missing", or that is a path to nothing, fails as pyxis does.
 *
 * Its one argument, in plugstack.conf, is the folder in which mount points may be made: anywhere
 * else (but /tmp, which is the node's own) that would leave folders on the host.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <slurm/spank.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

SPANK_PLUGIN(fake_pyxis, 1);

enum option { IMAGE, MOUNTS, WORKDIR, NAME, SAVE, ENV, ENTRYPOINT_LOG, HOME, REMAP_ROOT, ENTRYPOINT,
              WRITABLE, OPTIONS };

/* What the task's environment calls each. */
static const char *const variables[OPTIONS] = {
  "FAKE_CONTAINER_IMAGE", "FAKE_CONTAINER_MOUNTS", "FAKE_CONTAINER_WORKDIR",
  "FAKE_CONTAINER_NAME", "FAKE_CONTAINER_SAVE", "FAKE_CONTAINER_ENV",
  "FAKE_CONTAINER_ENTRYPOINT_LOG", "FAKE_CONTAINER_MOUNT_HOME", "FAKE_CONTAINER_REMAP_ROOT",
  "FAKE_CONTAINER_ENTRYPOINT", "FAKE_CONTAINER_WRITABLE",
};

/* A step daemon serves one step, so that these are one step's. */
static char *given[OPTIONS];

/*
 * Options from ENTRYPOINT_LOG on are flags, mostly in pairs: the value's lowest bit says which of
 * the two it was. Their argument is not always NULL.
 */
static int take(int value, const char *argument, int remote)
{
  (void)remote;
  const char *text = (value >> 1) < ENTRYPOINT_LOG ? argument : (value & 1) ? "1" : "0";

  if (!text)
    return -1;
  free(given[value >> 1]);
  given[value >> 1] = strdup(text);
  return given[value >> 1] ? 0 : -1;
}

#define WITH(name, what, option) { name, what, "fake: " name, 1, (option) << 1, take }
#define FLAG(name, option, on) { name, NULL, "fake: " name, 0, (option) << 1 | (on), take }

struct spank_option spank_options[] = {
  WITH("container-image", "IMAGE", IMAGE),
  WITH("container-mounts", "SRC:DST[:FLAGS][,...]", MOUNTS),
  WITH("container-workdir", "PATH", WORKDIR),
  WITH("container-name", "NAME", NAME),
  WITH("container-save", "PATH", SAVE),
  WITH("container-env", "NAME[,...]", ENV),
  FLAG("container-entrypoint-log", ENTRYPOINT_LOG, 1),
  FLAG("container-mount-home", HOME, 1),
  FLAG("no-container-mount-home", HOME, 0),
  FLAG("container-remap-root", REMAP_ROOT, 1),
  FLAG("no-container-remap-root", REMAP_ROOT, 0),
  FLAG("container-entrypoint", ENTRYPOINT, 1),
  FLAG("no-container-entrypoint", ENTRYPOINT, 0),
  FLAG("container-writable", WRITABLE, 1),
  FLAG("container-readonly", WRITABLE, 0),
  SPANK_OPTIONS_TABLE_END
};

static int below(const char *path, const char *folder)
{
  size_t length = strlen(folder);
  return length && !strncmp(path, folder, length) && (path[length] == '/' || !path[length]);
}

static int make_folders(const char *path, const char *allowed)
{
  char part[4096];
  struct stat there;

  if (!stat(path, &there))
    return 0;
  if (!below(path, allowed) && !below(path, "/tmp")) {
    slurm_error("fake pyxis: mount point %s does not exist, and is made only below %s", path, allowed);
    return -1;
  }
  if (snprintf(part, sizeof part, "%s", path) >= (int)sizeof part)
    return -1;
  for (char *end = strchr(part + 1, '/'); ; end = strchr(end + 1, '/')) {
    if (end)
      *end = 0;
    /* Other tasks of the step make the same. */
    if (mkdir(part, 0755) && errno != EEXIST) {
      slurm_error("fake pyxis: mkdir %s: %s", part, strerror(errno));
      return -1;
    }
    if (!end)
      return 0;
    *end = '/';
  }
}

/* Make one mount of SRC:DST[:FLAG[+FLAG...]], or PATH for the same on both sides. */
static int make_mount(char *source, const char *allowed)
{
  char *target = strchr(source, ':');
  char *flags = NULL;

  if (target) {
    *target++ = 0;
    flags = strchr(target, ':');
    if (flags)
      *flags++ = 0;
  } else {
    target = source;
  }
  if (access(source, F_OK)) {
    slurm_error("pyxis: couldn't start container: mount source %s: %s", source, strerror(errno));
    return -1;
  }
  if (make_folders(target, allowed))
    return -1;
  if (mount(source, target, NULL, MS_BIND | MS_REC, NULL) ||
      (flags && strstr(flags, "ro") && mount(NULL, target, NULL, MS_REMOUNT | MS_BIND | MS_RDONLY, NULL))) {
    slurm_error("pyxis: couldn't start container: mount %s on %s: %s", source, target, strerror(errno));
    return -1;
  }
  return 0;
}

static int make_mounts(const char *allowed)
{
  char *rest = NULL;

  if (unshare(CLONE_NEWNS) || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL)) {
    slurm_error("fake pyxis: no mount namespace: %s", strerror(errno));
    return -1;
  }
  for (char *one = strtok_r(given[MOUNTS], ",", &rest); one; one = strtok_r(NULL, ",", &rest))
    if (make_mount(one, allowed))
      return -1;
  return 0;
}

static int image_missing(const char *image)
{
  const char *base = strrchr(image, '/');

  return !strncmp(base ? base + 1 : image, "missing", 7) || (image[0] == '/' && access(image, F_OK));
}

int slurm_spank_task_init(spank_t spank, int count, char **arguments)
{
  if (!spank_remote(spank))
    return 0;
  if (given[IMAGE] && image_missing(given[IMAGE])) {
    slurm_error("pyxis: couldn't start container: no such image: %s", given[IMAGE]);
    return -1;
  }
  for (int i = 0; i < OPTIONS; i++)
    if (given[i] && spank_setenv(spank, variables[i], given[i], 1) != ESPANK_SUCCESS)
      return -1;
  /* As with pyxis, the other flags mean nothing to a step without a container. */
  if (!given[IMAGE] && !given[NAME])
    return 0;
  if (given[MOUNTS] && make_mounts(count > 0 ? arguments[0] : ""))
    return -1;
  if (given[WORKDIR] && chdir(given[WORKDIR])) {
    slurm_error("pyxis: couldn't start container: chdir %s: %s", given[WORKDIR], strerror(errno));
    return -1;
  }
  return 0;
}
