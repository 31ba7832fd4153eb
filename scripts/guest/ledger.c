/* Ledger: the program that runs inside the demo's guest and knows what must survive.
 *
 * It writes records at random places of preallocated files and whole small files beside them, makes
 * them durable in batches (fdatasync, fsync and rename), and only then reports the batch on a
 * virtio-serial port. What it reported must be there after any failure; what it did not report may
 * be there. Every byte is a function of (seed, worker, sequence number), so the checker needs
 * nothing but the last reported number of each worker. The same binary checks from outside.
 *
 *   ledger agent DIR PORT            in the guest: takes commands from PORT, answers on it
 *   ledger check DIR SEED N...       one durable sequence number per worker; exits 0 or 1
 *
 * Commands: "run SEED WORKERS", "stop", "check SEED N...", "off".
 * Answers:  "hello BOOT_SECONDS", "d WORKER SEQ" (all up to SEQ are durable), "r WRITES LONGEST_MS"
 *           (each second; the longest batch that ended or is still waiting), "stopped", "ok ...",
 *           "bad ...", "error ...".
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
    RECORD = 4096,        /* bytes of a record, the block of the volume */
    SLOTS = 8192,         /* records in one worker's file: 32 MiB */
    FILES = 64,           /* small files of a worker */
    FILE_EVERY = 64,      /* every so many writes one is a small file */
    FILE_MAX = 4 * RECORD,
    BATCH = 8,            /* writes made durable by one fdatasync */
    WORKERS_MAX = 8,
};

#define MAGIC 0x31524547444c5441ull

typedef struct {
    uint64_t magic, seed, worker, seq, place, bytes, sum, pad;
} Header;

_Static_assert(sizeof(Header) == 64, "the header is eight words");

static const char *dir;
static int port = -1;
static pthread_mutex_t port_lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_bool stopping;
static atomic_ulong writes_done;
static atomic_ullong batch_since[WORKERS_MAX]; /* start of the batch that is waiting, or 0 */
static atomic_ullong longest_us;

static void say(const char *format, ...) {
    char line[512];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(line, sizeof line - 1, format, args);
    va_end(args);
    if (n < 0) return;
    if (n > (int)sizeof line - 2) n = sizeof line - 2;
    line[n++] = '\n';
    pthread_mutex_lock(&port_lock);
    for (int at = 0; at < n;) {
        ssize_t got = write(port < 0 ? 1 : port, line + at, n - at);
        if (got < 0 && errno != EINTR && errno != EAGAIN) break;
        if (got > 0) at += got;
    }
    pthread_mutex_unlock(&port_lock);
}

static uint64_t now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static uint64_t mix(uint64_t x) { /* splitmix64: a bijection that scatters */
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

static uint64_t key_of(uint64_t seed, uint64_t worker, uint64_t seq) {
    return mix(mix(mix(seed) ^ worker) ^ seq);
}

static int is_file(uint64_t seq) { return seq % FILE_EVERY == 0; }

/* Where write `seq` goes: a slot of the worker's record file, or the number of a small file. */
static uint64_t place_of(uint64_t key, uint64_t seq) {
    return is_file(seq) ? (seq / FILE_EVERY) % FILES : key % SLOTS;
}

/* A file's length is a multiple of 8 between the header and FILE_MAX: short ones are the point. */
static uint64_t bytes_of(uint64_t key, uint64_t seq) {
    if (!is_file(seq)) return RECORD;
    return sizeof(Header) + (key >> 13) % (FILE_MAX - sizeof(Header)) / 8 * 8;
}

static uint64_t fill(uint64_t *words, uint64_t seed, uint64_t worker, uint64_t seq) {
    uint64_t key = key_of(seed, worker, seq), bytes = bytes_of(key, seq), sum = key, x = key | 1;
    for (uint64_t i = sizeof(Header) / 8; i < bytes / 8; i++) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        words[i] = x;
        sum = (sum ^ x) * 0x100000001b3ull;
    }
    Header h = {MAGIC, seed, worker, seq, place_of(key, seq), bytes, sum, 0};
    memcpy(words, &h, sizeof h);
    return bytes;
}

static void file_name(char *out, size_t cap, uint64_t worker, uint64_t number, const char *suffix) {
    snprintf(out, cap, "%s/files.%d/%03d%s", dir, (int)worker, (int)number, suffix);
}

static void failed(const char *what) {
    say("error %s: %s", what, strerror(errno));
    atomic_store(&stopping, 1);
}

static int write_file(uint64_t *words, uint64_t worker, uint64_t number, uint64_t bytes,
                      int dirfd) {
    char tmp[256], name[256];
    file_name(tmp, sizeof tmp, worker, number, ".new");
    file_name(name, sizeof name, worker, number, "");
    int fd = open(tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0) return -1;
    int bad = write(fd, words, bytes) != (ssize_t)bytes || fsync(fd) != 0;
    if (close(fd) != 0 || bad) return -1;
    return rename(tmp, name) != 0 || fsync(dirfd) != 0 ? -1 : 0;
}

typedef struct {
    uint64_t seed, worker;
    pthread_t thread;
} Worker;

static void *work(void *argument) {
    Worker *w = argument;
    static _Thread_local uint64_t words[FILE_MAX / 8];
    char name[256];
    snprintf(name, sizeof name, "%s/records.%d", dir, (int)w->worker);
    int fd = open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    snprintf(name, sizeof name, "%s/files.%d", dir, (int)w->worker);
    mkdir(name, 0755);
    int dirfd = open(name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || dirfd < 0 || posix_fallocate(fd, 0, (off_t)SLOTS * RECORD) != 0) {
        failed("prepare");
        return NULL;
    }
    for (uint64_t seq = 1; !atomic_load(&stopping);) {
        uint64_t start = now_us();
        atomic_store(&batch_since[w->worker], start);
        for (int i = 0; i < BATCH; i++, seq++) {
            uint64_t bytes = fill(words, w->seed, w->worker, seq);
            uint64_t place = place_of(key_of(w->seed, w->worker, seq), seq);
            int bad = is_file(seq)
                ? write_file(words, w->worker, place, bytes, dirfd) != 0
                : pwrite(fd, words, RECORD, (off_t)place * RECORD) != RECORD;
            if (bad) return failed("write"), NULL;
        }
        if (fdatasync(fd) != 0) return failed("fdatasync"), NULL;
        say("d %d %llu", (int)w->worker, (unsigned long long)(seq - 1));
        uint64_t took = now_us() - start, seen = atomic_load(&longest_us);
        while (took > seen && !atomic_compare_exchange_weak(&longest_us, &seen, took)) {}
        atomic_store(&batch_since[w->worker], 0);
        atomic_fetch_add(&writes_done, BATCH);
    }
    close(fd);
    close(dirfd);
    return NULL;
}

/* A line each second, so that the host sees the rate fall and rise while it happens. */
static void *report(void *unused) {
    (void)unused;
    unsigned long before = atomic_load(&writes_done);
    while (!atomic_load(&stopping)) {
        sleep(1);
        unsigned long done = atomic_load(&writes_done);
        uint64_t longest = atomic_exchange(&longest_us, 0), now = now_us();
        for (int i = 0; i < WORKERS_MAX; i++) {
            uint64_t since = atomic_load(&batch_since[i]);
            if (since && now > since && now - since > longest) longest = now - since;
        }
        say("r %lu %llu", done - before, (unsigned long long)(longest / 1000));
        before = done;
    }
    return NULL;
}

/* Reads one place and checks it whole: its seq, 0 for a place never written, -1 if wrong. */
static int64_t read_place(int fd, off_t at, uint64_t seed, uint64_t worker, uint64_t place,
                          int file) {
    static uint64_t found[FILE_MAX / 8], want[FILE_MAX / 8];
    ssize_t got = pread(fd, found, file ? FILE_MAX : RECORD, at);
    if (got < (ssize_t)sizeof(Header)) return -1;
    Header h;
    memcpy(&h, found, sizeof h);
    if (h.magic == 0 && !file) {
        for (int i = 0; i < RECORD / 8; i++) if (found[i]) return -1;
        return 0;
    }
    if (h.magic != MAGIC || h.seed != seed || h.worker != worker || h.place != place) return -1;
    if (!h.seq || is_file(h.seq) != file) return -1;
    if (place_of(key_of(seed, worker, h.seq), h.seq) != place) return -1;
    uint64_t bytes = fill(want, seed, worker, h.seq);
    return (uint64_t)got == bytes && memcmp(found, want, bytes) == 0 ? (int64_t)h.seq : -1;
}

/* Every place must hold the newest durable write to it, or a later one that was never reported. */
static int check_worker(uint64_t seed, uint64_t worker, uint64_t durable, uint64_t *places) {
    static uint64_t slots[SLOTS], files[FILES];
    memset(slots, 0, sizeof slots);
    memset(files, 0, sizeof files);
    for (uint64_t seq = 1; seq <= durable; seq++)
        (is_file(seq) ? files : slots)[place_of(key_of(seed, worker, seq), seq)] = seq;
    char name[256];
    snprintf(name, sizeof name, "%s/records.%d", dir, (int)worker);
    int fd = open(name, O_RDONLY | O_CLOEXEC), bad = 0;
    for (uint64_t i = 0; i < SLOTS; i++) {
        int64_t seq = fd < 0 ? -1 : read_place(fd, (off_t)i * RECORD, seed, worker, i, 0);
        if (seq < (int64_t)slots[i] || seq > (int64_t)(durable + BATCH)) {
            say("bad worker %d slot %d holds %lld, expected %lld or later", (int)worker, (int)i,
                (long long)seq, (long long)slots[i]);
            if (++bad == 10) break;
        }
        *places += slots[i] != 0;
    }
    if (fd >= 0) close(fd);
    for (uint64_t i = 0; i < FILES && bad < 10; i++) {
        if (!files[i]) continue;
        file_name(name, sizeof name, worker, i, "");
        fd = open(name, O_RDONLY | O_CLOEXEC);
        int64_t seq = fd < 0 ? -1 : read_place(fd, 0, seed, worker, i, 1);
        if (fd >= 0) close(fd);
        if (seq < (int64_t)files[i] || seq > (int64_t)(durable + BATCH)) {
            say("bad worker %d file %d holds %lld, expected %lld or later", (int)worker, (int)i,
                (long long)seq, (long long)files[i]);
            bad++;
        }
        *places += 1;
    }
    return bad;
}

/* `words`: the seed, then one number per worker. */
static int check(char **words, int count) {
    uint64_t seed = strtoull(words[0], NULL, 10), total = 0, places = 0;
    int bad = 0;
    for (int i = 1; i < count; i++) {
        uint64_t durable = strtoull(words[i], NULL, 10);
        total += durable;
        if (durable) bad += check_worker(seed, i - 1, durable, &places);
    }
    if (bad == 0)
        say("ok %llu writes at %llu places", (unsigned long long)total,
            (unsigned long long)places);
    return bad != 0;
}

static int agent(void) {
    static Worker workers[WORKERS_MAX];
    static pthread_t reporter;
    int running = 0;
    FILE *in = fdopen(dup(port), "r");
    if (!in) return 1;
    struct timespec up;
    clock_gettime(CLOCK_BOOTTIME, &up);
    say("hello %d.%d", (int)up.tv_sec, (int)(up.tv_nsec / 100000000));
    char line[1024], *words[WORKERS_MAX + 3];
    while (fgets(line, sizeof line, in)) {
        int n = 0;
        for (char *word = strtok(line, " \n"); word; word = strtok(NULL, " \n"))
            if (n < WORKERS_MAX + 3) words[n++] = word;
        if (n == 3 && !strcmp(words[0], "run") && !running) {
            int count = atoi(words[2]);
            if (count < 1 || count > WORKERS_MAX) {
                say("error workers: 1 to %d", WORKERS_MAX);
                continue;
            }
            atomic_store(&stopping, 0);
            for (; running < count; running++) {
                workers[running].seed = strtoull(words[1], NULL, 10);
                workers[running].worker = running;
                pthread_create(&workers[running].thread, NULL, work, &workers[running]);
            }
            pthread_create(&reporter, NULL, report, NULL);
        } else if (n == 1 && !strcmp(words[0], "stop") && running) {
            atomic_store(&stopping, 1);
            while (running) pthread_join(workers[--running].thread, NULL);
            pthread_join(reporter, NULL);
            say("stopped");
        } else if (n >= 3 && !strcmp(words[0], "check")) {
            if (check(words + 1, n - 1) != 0) say("bad end");
        } else if (n == 1 && !strcmp(words[0], "off")) {
            say("off");
            return 0;
        } else {
            say("error unknown command");
        }
    }
    return 0;
}

int main(int argc, char **argv) {
    if (argc == 4 && !strcmp(argv[1], "agent")) {
        dir = argv[2];
        port = open(argv[3], O_RDWR | O_CLOEXEC);
        if (port < 0) return perror(argv[3]), 1;
        return agent();
    }
    if (argc >= 5 && !strcmp(argv[1], "check")) {
        dir = argv[2];
        return check(argv + 3, argc - 3);
    }
    fprintf(stderr, "usage: ledger agent DIR PORT | ledger check DIR SEED N...\n");
    return 2;
}
