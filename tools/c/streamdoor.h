/* streamdoor.h: read an execution of a streamdoor server from another process, or be the producer
 * of one, through shared memory. Version 1.
 *
 * Link with -lstreamdoor_c (cargo build --release --manifest-path tools/c/Cargo.toml).
 *
 *     sd_door door;  sd_reader reader;  sd_delivery delivery = SD_DELIVERY_INIT;
 *     if (sd_open(NULL, NULL, &door) < 0 || sd_read(door, id, NULL, &reader) < 0)
 *         die(sd_error_text());
 *     while (sd_next(reader, -1, &delivery) == SD_DELIVERY)
 *         if (delivery.type == SD_CHUNK)
 *             fwrite(delivery.data, 1, delivery.size, stdout);
 *     sd_close_reader(reader);
 *     sd_close(door);
 *
 * Every function gives a number: negative is an SD_ERROR_…, and sd_error_text() says more. None of
 * them ends the process or throws. Doors, readers and writers are names and not addresses: a name
 * that was closed, was never given out, or is of another kind, is SD_ERROR_NAME. A reader or writer
 * may go from thread to thread; two threads in it at once is SD_ERROR_BUSY for the second. (So is
 * everything while another one waits in sd_next.) After fork() the child has to leave the parent's
 * readers and writers alone.
 *
 * Pointers that are given to a function are checked for NULL, and lengths for sense; that they
 * point to as many bytes as was said is the caller's word. Texts are UTF-8 and end with a zero.
 */
#ifndef STREAMDOOR_H
#define STREAMDOOR_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What this header describes; sd_version() says it of the library. The same major version is
 * compatible: later minor versions have more functions, and structures that are longer. */
#define SD_VERSION_MAJOR 1
#define SD_VERSION_MINOR 0
uint32_t sd_version(void); /* major << 16 | minor */

/* ---- names ---- */

typedef struct sd_door { uint64_t name; } sd_door;
typedef struct sd_reader { uint64_t name; } sd_reader;
typedef struct sd_writer { uint64_t name; } sd_writer;
/* As many at once, of all three together. */
#define SD_NAMES_MAX 1024

/* ---- what functions give ---- */

enum {
    SD_OK = 0,
    SD_NOTHING = 0,   /* sd_next, sd_poll: there is nothing (yet); sd_try_send: held back */
    SD_DELIVERY = 1,  /* sd_next, sd_poll: something was delivered; sd_try_send: it was sent */
    SD_OVER = 2,      /* sd_next, sd_poll: the end was delivered before */

    SD_ERROR_ARGUMENT = -1,    /* a NULL, a text that is no UTF-8, a number out of range */
    SD_ERROR_NAME = -2,        /* not (any more) the name of such a thing */
    SD_ERROR_BUSY = -3,        /* another thread is in it */
    SD_ERROR_TOO_MANY = -4,    /* SD_NAMES_MAX */
    SD_ERROR_NO_SERVER = -5,   /* nobody listens there, or somebody of another user */
    SD_ERROR_REFUSED = -6,     /* the server said no, and why */
    SD_ERROR_UNSOUND = -7,     /* what stands in shared memory can not be right: give up */
    SD_ERROR_SERVER_GONE = -8, /* the server has gone, without an end */
    SD_ERROR_STOPPED = -9,     /* a writer's execution has ended: it was cancelled, say */
    SD_ERROR_TOO_LARGE = -10,  /* a chunk of this ring has fewer bytes */
    SD_ERROR_SYSTEM = -11,     /* the kernel said no */
    SD_ERROR_INTERNAL = -12    /* a bug of the library; the thing it happened in is closed */
};

/* What the last negative number on this thread was about. Good until the next one. Never NULL. */
const char *sd_error_text(void);

/* ---- doors ---- */

/* The door at `path`; NULL: $XDG_RUNTIME_DIR/streamdoor.sock. `token`: NULL, or what the server
 * wants to be shown. Connects to nothing yet. */
int sd_open(const char *path, const char *token, sd_door *door);
/* Readers and writers that came through it stay. */
int sd_close(sd_door door);

/* ---- reading ---- */

enum { /* sd_read_options.policy: what happens to a reader that lags */
    SD_POLICY_DEFAULT = 0, /* what the execution or its tool says */
    SD_POLICY_DROP = 1,
    SD_POLICY_DROP_OLDEST = 2,
    SD_POLICY_BUFFER = 3,
    SD_POLICY_BLOCK = 4,   /* nothing is lost: the producer waits */
    SD_POLICY_CONFLATE = 5,
    SD_POLICY_DISCONNECT = 6,
    SD_POLICY_REPLAY = 7   /* nobody waits for it; what the ring has lost is a gap */
};

enum { SD_FROM_START = 0, SD_FROM_LIVE = 1, SD_FROM_SEQ = 2 }; /* sd_read_options.from */

typedef struct sd_read_options {
    size_t struct_size;    /* sizeof(sd_read_options) */
    uint32_t policy;
    uint32_t from;
    uint64_t from_seq;     /* with SD_FROM_SEQ */
    uint32_t limit_chunks; /* how far it may lag; 0: the default */
    uint32_t kinds;        /* a bit for each kind (1 << SD_OUTPUT); 0: all */
    uint64_t limit_bytes;  /* 0: the default */
    uint32_t headers_only; /* 1: chunks come without their bytes */
    uint32_t reserved;     /* 0 */
} sd_read_options;
#define SD_READ_OPTIONS_INIT { sizeof(sd_read_options), 0, 0, 0, 0, 0, 0, 0, 0 }

/* Reads an execution. `options`: NULL for the defaults. */
int sd_read(sd_door door, const char *execution, const sd_read_options *options,
            sd_reader *reader);
/* Starts a tool and reads what it gives from its first chunk. `arguments`: a JSON object, or NULL
 * for an empty one. */
int sd_run(sd_door door, const char *tool, const char *arguments, const sd_read_options *options,
           sd_reader *reader);

enum { SD_CHUNK = 1, SD_GAP = 2, SD_PROGRESS = 3, SD_END = 4 }; /* sd_delivery.type */

enum { /* sd_delivery.kind */
    SD_OUTPUT = 0, SD_STDOUT = 1, SD_STDERR = 2, SD_ROW = 3, SD_MATCH = 4, SD_SAMPLE = 5,
    SD_TEXT = 6, SD_TOOL_CALL = 7, SD_TOOL_ARGUMENTS = 8, SD_JSON = 9, SD_LOG = 10,
    SD_CUSTOM = 11, SD_CONTENT = 12
};

enum { SD_FLAG_MORE = 1 }; /* sd_delivery.flags: what was sent at once goes on in the next chunk */

enum { /* sd_delivery.outcome */
    SD_COMPLETED = 1, SD_FAILED = 2, SD_CANCELLED = 3, SD_TIMED_OUT = 4,
    /* The execution goes on without this reader: it lagged, held the producer back for too long,
     * broke, the server shuts down, or needs the ring for somebody else. */
    SD_DETACHED_LAG = 16, SD_DETACHED_STALL = 17, SD_DETACHED_LOST = 18,
    SD_DETACHED_SHUTDOWN = 19, SD_DETACHED_EVICTED = 20,
    SD_DETACHED_REMOVED = 21
};

typedef struct sd_delivery {
    size_t struct_size;     /* sizeof(sd_delivery): set by the caller, stays */
    uint32_t type;          /* SD_CHUNK, SD_GAP, SD_PROGRESS, SD_END */
    uint32_t kind;          /* chunk */
    uint32_t key;           /* chunk */
    uint32_t flags;         /* chunk */
    uint64_t seq;           /* chunk: its number, 1, 2, 3 …; gap: the first that is missed; end of
                               SD_DETACHED_…: where to go on */
    uint64_t to_seq;        /* gap: the last that is missed */
    uint64_t chunk_count;   /* gap: chunks missed; end: chunks given */
    uint64_t byte_count;    /* gap: bytes missed; end: bytes given */
    uint64_t missed_chunks; /* end: of all gaps */
    uint64_t missed_bytes;  /* end: of all gaps */
    uint64_t offset;        /* chunk: bytes of the execution in front of it */
    uint64_t expected;      /* chunk: how many chunks there will be; 0: unknown */
    uint64_t time_us;       /* chunk: when it was published, µs since 1970 */
    uint64_t time_ns;       /* chunk: the same on CLOCK_MONOTONIC */
    double progress;        /* progress: so much is done */
    double total;           /* progress: of so much; 0: unknown */
    uint32_t outcome;       /* end */
    int32_t exit_code;      /* end: of the process that the tool ran; -1: none or a signal */
    int32_t exit_signal;    /* end: that ended it; 0: none */
    uint32_t reserved;
    const uint8_t *data;    /* chunk: its bytes; progress: the message; end: what went wrong. Good
                               until the next call with this reader. No zero at the end. */
    size_t size;            /* bytes of data */
} sd_delivery;
#define SD_DELIVERY_INIT \
    { sizeof(sd_delivery), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/* What is next: waits for it for `timeout_ms`, or without end if that is negative. SD_DELIVERY,
 * SD_NOTHING (the time is up), SD_OVER. */
int sd_next(sd_reader reader, int64_t timeout_ms, sd_delivery *delivery);
/* The same, never waits. While there is something to read it makes no system call. */
int sd_poll(sd_reader reader, sd_delivery *delivery);
/* A descriptor for poll(), select(), an event loop; nothing is to be read from it. Before waiting:
 * sd_watch(). It stays the reader's. */
int sd_fd(sd_reader reader);
/* 1: "I will now wait until sd_fd() is readable". 0: there is something already. Then sd_poll()
 * until it gives SD_NOTHING, and ask again. */
int sd_watch(sd_reader reader);
/* Writes the execution's id and a zero to `buffer`; SD_ERROR_ARGUMENT if that is too small. 64
 * bytes are enough. */
int sd_reader_execution(sd_reader reader, char *buffer, size_t size);
int sd_close_reader(sd_reader reader);

/* ---- producing ---- */

typedef struct sd_produce_options {
    size_t struct_size;       /* sizeof(sd_produce_options) */
    uint32_t ring_bytes;      /* at most 8 MiB; the server takes the next larger size that it
                                 can spare; 0: its choice */
    uint32_t chunk_bytes;     /* the longest chunk that the ring has to take at once; 0: its choice */
    uint64_t estimated_bytes; /* how much there will be; 0: unknown */
    uint32_t policy;          /* of readers that do not say (SD_POLICY_…) */
    uint32_t hold_ms;         /* the ring waits so long for the first reader before it drops
                                 anything; 0: the server's default (30 s); UINT32_MAX: it does not
                                 wait */
} sd_produce_options;
#define SD_PRODUCE_OPTIONS_INIT { sizeof(sd_produce_options), 0, 0, 0, 0, 0 }

/* Becomes the producer of a new execution, which is listed under `name`. `options`: NULL for the
 * defaults. If this process ends before sd_complete() or sd_fail(), however it ends, all readers
 * are told that the execution failed. */
int sd_produce(sd_door door, const char *name, const sd_produce_options *options,
               sd_writer *writer);
int sd_writer_execution(sd_writer writer, char *buffer, size_t size);
/* The longest payload of one chunk. */
int sd_chunk_bytes_max(sd_writer writer);

/* Sends bytes as a chunk, or as several where the ring takes less at once (all but the last flagged
 * SD_FLAG_MORE). Waits while a `block` reader has to read first. `seq`: NULL, or where the number
 * of the (last) chunk goes. */
int sd_send(sd_writer writer, const void *data, size_t size, uint64_t *seq);
/* The same with a kind (SD_OUTPUT …) and a key (0 to 63). */
int sd_send_as(sd_writer writer, uint32_t kind, uint32_t key, const void *data, size_t size,
               uint64_t *seq);
/* Sends one chunk if that is possible at once: SD_DELIVERY; SD_NOTHING if it is held back. */
int sd_try_send(sd_writer writer, uint32_t kind, uint32_t key, const void *data, size_t size,
                uint64_t *seq);
/* Without a copy: room in the ring for a chunk of up to `size` bytes, to be filled and then
 * published with its length. Waits as sd_send does. The room is good until the next call with this
 * writer. */
int sd_lend(sd_writer writer, size_t size, void **room);
int sd_publish(sd_writer writer, uint32_t kind, uint32_t key, size_t size, uint64_t *seq);

/* So much is done, of so much (0: unknown); in words, or NULL. The newest report counts. */
int sd_progress(sd_writer writer, double progress, double total, const char *message);
/* There will be so many chunks. */
int sd_expect(sd_writer writer, uint64_t chunk_count);
/* 1: nothing is taken any more, return. 0: go on. */
int sd_is_stopped(sd_writer writer);

/* The last words: that everything was published, or what went wrong. Both wait until the server has
 * taken all of it, and close the writer, whatever they give. */
int sd_complete(sd_writer writer);
int sd_fail(sd_writer writer, const char *text);
/* Without a last word the execution fails: "the producer left". */
int sd_close_writer(sd_writer writer);

#ifdef __cplusplus
}
#endif

#endif
