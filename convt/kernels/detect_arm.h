/* The features and caches of an AArch64 CPU, as the operating system reports them. Included by dispatch.c. */
#ifdef __linux__
#include <stdio.h>
#include <sys/auxv.h>

static unsigned found_features(void)
{
    const unsigned long bf16 = 1ul << 14; /* HWCAP2_BF16, which older system headers lack */
    return getauxval(AT_HWCAP2) & bf16 ? CPU_ARM_BF16 : 0;
}

/* Read a line of a file in a directory of sysfs. Return 1 if the file exists. */
static int sysfs_line(char *line, int size, int cache, const char *name)
{
    char path[80];
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/%s", cache, name);
    FILE *file = fopen(path, "r");
    const int found = file && fgets(line, size, file);
    if (file)
        fclose(file);
    return found;
}

long convt_cache_bytes(int level)
{
    char line[32];
    for (int n = 0; n < 16 && sysfs_line(line, sizeof line, n, "type"); n++) {
        int found;
        long size;
        char unit = 0;
        if (line[0] == 'I' || !sysfs_line(line, sizeof line, n, "level") || sscanf(line, "%d", &found) != 1 || found != level)
            continue; /* an instruction cache, or another level */
        if (sysfs_line(line, sizeof line, n, "size") && sscanf(line, "%ld%c", &size, &unit) >= 1)
            return size << (unit == 'K' ? 10 : unit == 'M' ? 20 : 0);
    }
    return 0;
}
#else /* macOS */
#include <sys/sysctl.h>

/* Return a number that the kernel reports by a name, or 0. */
static long reported(const char *name)
{
    int64_t value = 0; /* shorter values leave the upper bytes 0 */
    size_t size = sizeof value;
    return sysctlbyname(name, &value, &size, NULL, 0) ? 0 : (long)value;
}

static unsigned found_features(void)
{
    return reported("hw.optional.arm.FEAT_BF16") ? CPU_ARM_BF16 : 0;
}

/* perflevel0 are the performance cores. They have no third level. */
long convt_cache_bytes(int level)
{
    return level == 1 ? reported("hw.perflevel0.l1dcachesize") : level == 2 ? reported("hw.perflevel0.l2cachesize") : 0;
}
#endif
